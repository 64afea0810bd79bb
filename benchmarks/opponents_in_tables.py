"""What the rules of choosing opponents do over many updates where the policy is a table: no language model.

A policy here is a number for each action of each information state, as in ``magnet_in_tables.py``, whose
``magnet`` with Kuhn's constants it learns by: each update makes two steps of Adam (0.1, momentum 0.8). The
opponents are chosen by this package's own ``ModelPool`` and ``League``, with the settings of
``ladders/opponents.toml``: a copy of the policy joins the pool every few updates, eight copies of a policy
are active, and a rule that draws opponents trains one seat of each game. Copies are of the policy itself and
not of its average. The games of an update are divided into draws of equally many games.

The table gives NashConv of the policy (in a league the main player's) and of two averages of its logarithms:
``recent`` has decay 0.95 and power 8, ``all`` has decay 0.99 and power 1 (``learning.average_power``). Each
is the mean over evaluations in the last third and over seeds, and in brackets the largest.

Command:  python benchmarks/opponents_in_tables.py [--games rps kuhn leduc] [--rules mirror ...] [--seeds 3]
Needs:    this package. A minute of one core for a game of rock, paper, scissors, and about five for Kuhn.
"""

import argparse
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from game_trees import FloatArray, IntArray, Tree
from magnet_in_tables import DECAY, Adam, Method, Values, mean_with, normalised, step_of
from measuring import pin_one_thread, print_table
from sparring.config.league import LeagueSettings
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.population.opponent_choice import SamplingRule

GAMES = {
    "rps": ("turn_based_simultaneous_game(game=matrix_rps())", 150, 512),
    "kuhn": ("kuhn_poker", 150, 1024),
    "leduc": ("leduc_poker", 240, 4096),
}
"""A game's name in OpenSpiel, the number of updates, and the games in each."""
DRAWS = 64
"""Opponents that are drawn for each update."""
ADD_EVERY, ACTIVE, SNAPSHOT_UPDATES = 5, 8, 10
METHOD, EPOCHS = Method("magnet", alpha=0.6, momentum=0.8), 2
AVERAGES = {"recent": (0.95, 8), "all": (0.99, 1)}
"""Decay and power of each average."""
PLAYERS = {
    "default": {"role": "main", "share": 2.0},
    "attacker": {"role": "main_exploiter"},
    "finder": {"role": "league_exploiter"},
}
RULES: dict[str, SamplingRule | dict[str, Any]] = {
    "mirror": SamplingRule(),
    "lagged": SamplingRule(),
    "random": SamplingRule(),
    "historical": SamplingRule(),
    "historical, 0.8 mirror": SamplingRule(mirror_share=0.8),
    "pfsp hard": SamplingRule(pfsp="hard"),
    "pfsp variance": SamplingRule(pfsp="variance"),
    "pfsp linear": SamplingRule(pfsp="linear"),
    "pfsp hard, 0.5 mirror": SamplingRule(pfsp="hard", mirror_share=0.5),
    "league": {"players": PLAYERS, "snapshot_updates": SNAPSHOT_UPDATES},
    "league, 0.7 self-play": {
        "players": PLAYERS,
        "self_play": 0.7,
        "forgotten": 0.1,
        "snapshot_updates": SNAPSHOT_UPDATES,
    },
}
"""The rules by their names, whose first word is the sample mode."""


@dataclass
class Learner:
    """A policy that learns by ``METHOD``, and its averages."""

    tree: Tree
    updates: int = 0
    policy: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        """Begin with uniform play."""
        self.start_again()

    def start_again(self) -> None:
        """Forget everything."""
        legal_SA = self.tree.legal_SA
        self.updates = 0
        self.policy = self.follower = normalised(np.zeros(legal_SA.shape), legal_SA)
        self.averages = dict.fromkeys(AVERAGES, self.policy)
        self.values = Values.of(METHOD)
        self.adam = Adam(np.zeros(legal_SA.shape), np.zeros(legal_SA.shape))

    @property
    def policy_SA(self) -> FloatArray:
        """The probabilities of actions."""
        return np.exp(self.policy) * self.tree.legal_SA

    def update(self, decisions: tuple[IntArray, IntArray, FloatArray]) -> None:
        """Learn from decisions, as :func:`magnet_in_tables.learn` does."""
        legal_SA, n = self.tree.legal_SA, self.updates + 1
        equal_SA = legal_SA / legal_SA.sum(axis=1, keepdims=True)
        value_SA, share_S = self.values(self.tree.seats, self.policy_SA, decisions)
        follower_SA, uniform = np.exp(normalised(self.follower, legal_SA)), METHOD.uniform
        magnet_SA = (1 - uniform) * follower_SA + uniform * equal_SA
        alpha_S1 = np.full((len(self.tree.seats), 1), METHOD.alpha)
        for epoch in range(EPOCHS):
            step_SA = step_of(METHOD, alpha_S1, self.policy, np.log(magnet_SA), value_SA, legal_SA)
            number = (n - 1) * EPOCHS + epoch + 1
            moved_SA = METHOD.rate * self.adam.step(share_S[:, None] * step_SA, number, METHOD.momentum)
            self.policy = normalised(self.policy + moved_SA, legal_SA)
        self.follower = mean_with(self.follower, self.policy, min(DECAY, n / (n + 1)))
        for name, (decay, power) in AVERAGES.items():
            kept = min(decay, n / (n + power + 1))
            self.averages[name] = mean_with(self.averages[name], self.policy, kept)
        self.updates = n

    def nash_conv(self) -> dict[str, float]:
        """Return NashConv of the policy and of its averages."""
        legal_SA = self.tree.legal_SA
        averages = {name: np.exp(normalised(one, legal_SA)) * legal_SA for name, one in self.averages.items()}
        tables = {"policy": self.policy_SA} | averages
        return {name: self.tree.nash_conv(table_SA) for name, table_SA in tables.items()}


class Training:
    """Self-play with one rule of choosing opponents."""

    def __init__(self, tree: Tree, name: str, seed: int) -> None:
        rule = RULES[name]
        self.tree = tree
        self.draws = random.Random(seed)
        self.generator = np.random.default_rng(seed)
        mode = name.replace(",", "").split()[0]
        if isinstance(rule, dict):
            self.pool = ModelPool("pfsp", ACTIVE, seed=seed)
            self.league: League | None = League(LeagueSettings.model_validate(rule), self.pool, seed)
        else:
            self.pool, self.league = ModelPool(mode, ACTIVE, seed=seed, rule=rule), None
        self.learners = {one: Learner(tree) for one in (self.league.players if self.league else ["default"])}
        self.copies: dict[str, FloatArray] = {}
        for policy in self.learners:
            self.pool.add_policy(policy)
        self.freeze("default", 0)

    def freeze(self, policy: str, update: int) -> None:
        """Add a copy of a policy to the pool."""
        self.copies[self.pool.add_checkpoint(None, update, policy)] = self.learners[policy].policy_SA

    def update(self, number: int, games: int) -> None:
        """Play games, learn from them, and freeze those whose turn it is."""
        decisions = defaultdict(list)
        for _ in range(DRAWS):
            player, seat, opponent = self.draw()
            played = self.play(player, seat, opponent, games // DRAWS)
            decisions[player].append(played)
        for player, parts in decisions.items():
            state_D, action_D, reward_D = (np.concatenate(one) for one in zip(*parts, strict=True))
            if len({self.tree.seats[state] for state in state_D}) == 2:
                self.learners[player].update((state_D, action_D, reward_D))
        if number % ADD_EVERY == 0:
            self.freeze("default", number)
        if self.league:
            due = self.league.due(number)
            for player in due:
                self.freeze(player, number)
            for player in self.league.start_again(due, number):
                self.learners[player].start_again()

    def draw(self) -> tuple[str, int, str]:
        """Return who learns, in which seat, and against whom; if that is itself, it learns in both."""
        if self.league:
            drawn = self.league.draw(self.draws, 0)
            return drawn.player, drawn.seat, drawn.opponent
        seat = self.draws.randrange(2)
        if self.pool.draw_mirror(self.draws):
            return "default", seat, "default"
        return "default", seat, self.pool.sample("default", self.draws)

    def play(
        self, player: str, seat: int, opponent: str, games: int
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Play games between two, count them, and return the decisions from which the player learns."""
        mine_SA = self.learners[player].policy_SA
        other = self.learners.get(opponent)
        theirs_SA = self.copies[opponent] if other is None else other.policy_SA
        is_mine_S = np.array(self.tree.seats) == seat
        table_SA = np.where(is_mine_S[:, None], mine_SA, theirs_SA)
        state_D, action_D, reward_D, game_D = self.tree.sample_games(table_SA, games, self.generator)
        if opponent == player:
            return state_D, action_D, reward_D
        learns_D = is_mine_S[state_D]
        for reward in dict(zip(game_D[learns_D], reward_D[learns_D], strict=True)).values():
            scores = {player: float(reward), opponent: -float(reward)}
            self.pool.recent.add_game(player, scores)
            if other is not None:
                self.pool.recent.add_game(opponent, scores)
        return state_D[learns_D], action_D[learns_D], reward_D[learns_D]


def last_third(game: str, rule: str, seed: int) -> list[dict[str, float]]:
    """Train, and return NashConv after every tenth update of the last third."""
    name, updates, games = GAMES[game]
    training, found = Training(Tree.of(name), rule, seed), []
    for number in range(1, updates + 1):
        training.update(number, games)
        if number > updates * 2 / 3 and number % 10 == 0:
            found.append(training.learners["default"].nash_conv())
    return found


def main() -> None:
    """Print a table for each game, with a row for each rule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pin_one_thread()
    for game in options.games:
        rows = []
        for rule in options.rules:
            found = [one for seed in range(options.seeds) for one in last_third(game, rule, seed)]
            columns = [[one[name] for one in found] for name in ("policy", *AVERAGES)]
            rows.append([rule, *(f"{np.mean(one):.3f} ({max(one):.3f})" for one in columns)])
        print(f"\n{game}\n")
        print_table(["rule", "policy", *AVERAGES], rows)


if __name__ == "__main__":
    main()
