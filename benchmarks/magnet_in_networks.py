"""What losses over legal answers do where few games meet a position: a small network learns TicTacToe.

In ``magnet_in_tables.py`` every position has numbers of its own, and most are met by many games. Here a
network of two layers answers all positions, as a language model does, and an update has few games, so most
positions are met by one. Values, losses and magnet are those of ``magnet_in_tables``; positions count by the
square root of the games that meet them, and the steps are Adam's.

The table gives the share of games that the slower average (0.95) holds against perfect play, which draws one
of its best moves: draws in TicTacToe, in the mean over both seats, and wins in Nim, in the seat that can win.
It is computed exactly, after some updates, in the mean over seeds and in brackets the smallest. Nobody wins
TicTacToe against perfect play; uniformly random play draws an eighth.
``entropy`` is that of the policy over legal moves at the end, in nats, over the positions of the last games.
``reinforce`` is the plain policy gradient of mirror self-play.

Command:  python benchmarks/magnet_in_networks.py [--game tic_tac_toe] [--games 48] [--updates 200]
              [--seeds 3] [--rows losses|tree]
Needs:    this package. About a minute of one core for a row.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyspiel

from game_trees import BoolArray, FloatArray, IntArray
from magnet_in_tables import Method
from measuring import pin_one_thread, print_table
from small_networks import Learner, Played, States, Training

LEAST = 1e-300
"""In place of a probability of 0 in a logarithm."""


@dataclass(frozen=True)
class Row:
    """How the network learns. Games begin with up to ``opening`` random moves, which are not learned."""

    training: Training
    opening: int = 0

    @property
    def changes(self) -> str:
        """What differs from the loss alone."""
        opening = f"opening {self.opening}" if self.opening else ""
        return ", ".join(filter(None, [self.training.method.changes, opening]))


def row(method: Method, rate: float = 1e-3, epochs: int = 2, opening: int = 0) -> Row:
    """Return a row with momentum."""
    return Row(Training(method, rate, epochs), opening)


CROSS_ENTROPY, POLICY, NEURD = (Method(loss, alpha=0.3) for loss in ("magnet", "policy", "neurd"))
MORE = 0.8
"""The default alpha."""
LOSSES = [
    Row(Training(Method("reinforce"), epochs=1, momentum=0.0)),
    *(row(one, rate) for one in (CROSS_ENTROPY, POLICY, NEURD) for rate in (1e-3, 3e-3)),
    *(row(replace(one, alpha=MORE), 3e-3) for one in (CROSS_ENTROPY, POLICY, NEURD)),
    row(replace(CROSS_ENTROPY, corrected=True), 3e-3),
    *(row(replace(one, corrected=False), 3e-3) for one in (POLICY, NEURD)),
    *(row(replace(one, alpha=MORE, corrected=False), 3e-3) for one in (POLICY, NEURD)),
    row(replace(POLICY, alpha=MORE, tracked=False), 3e-3),
    *(row(replace(CROSS_ENTROPY, eta=eta), 3e-3) for eta in (0.4, 4.0)),
    *(row(one, epochs=8) for one in (CROSS_ENTROPY, POLICY, replace(POLICY, alpha=MORE))),
    row(replace(POLICY, alpha=MORE), 6e-3, epochs=1),
    row(replace(CROSS_ENTROPY, memory=16.0), 3e-3),
    *(row(replace(one, alpha=MORE, memory=16.0), 3e-3) for one in (CROSS_ENTROPY, POLICY, NEURD)),
    *(row(replace(POLICY, alpha=MORE, memory=16.0), 3e-3, opening=most) for most in (1, 2, 4)),
]
"""The rows of the table."""
TODAY = replace(POLICY, alpha=MORE, memory=16.0)
EXPLORING = [replace(TODAY, explore=0.2), replace(TODAY, explore=0.2, tree=True), replace(TODAY, tree=True)]
TREE = [
    *(row(TODAY, 3e-3, opening=most) for most in (0, 2)),
    *(row(one, 3e-3) for one in EXPLORING),
    row(EXPLORING[1], 3e-3, opening=2),
]
"""The rows of the table about the values of the tree of games and exploration."""
ROWS = {"losses": LOSSES, "tree": TREE}


@dataclass
class Positions:
    """All S positions of the game in which a player moves, whichever moves led there.

    ``next_SA`` is the position after a move, -1 where the game ends, and ``end_SA`` what the mover earns
    there. ``best_SA`` tells which moves keep the value of the position, and ``value`` is that of the first
    position to its mover.
    """

    name: str
    value: float = 0.0
    seats: list[int] = field(default_factory=list)
    features: list[list[float]] = field(default_factory=list)
    legal_SA: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    next_SA: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    end_SA: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    best_SA: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))

    @classmethod
    def of(cls, name: str) -> "Positions":
        """Visit every position once, and solve it."""
        index: dict[str, int] = {}
        rows: dict[int, dict[int, tuple[int, float]]] = {}
        value: dict[int, float] = {}
        found = cls(name)

        def visit(state: Any) -> int:
            key, seat = str(state), state.current_player()
            if key in index:
                return index[key]
            number = index[key] = len(index)
            found.seats.append(seat)
            found.features.append([*state.observation_tensor(), float(seat)])
            rows[number] = {}
            worth = []
            for action in state.legal_actions():
                child = state.child(action)
                after = -1 if child.is_terminal() else visit(child)
                end = float(child.returns()[seat]) if child.is_terminal() else 0.0
                rows[number][action] = (after, end)
                worth.append(end if after < 0 else -value[after])
            value[number] = max(worth)
            return number

        game = pyspiel.load_game(name)
        visit(game.new_initial_state())
        found.value = value[0]
        shape = (len(index), game.num_distinct_actions())
        found.legal_SA, found.best_SA = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        found.next_SA, found.end_SA = np.full(shape, -1), np.zeros(shape)
        for number, moves in rows.items():
            for action, (after, end) in moves.items():
                found.legal_SA[number, action] = True
                found.next_SA[number, action], found.end_SA[number, action] = after, end
                worth = end if after < 0 else -value[after]
                found.best_SA[number, action] = worth == value[number]
        return found

    @property
    def states(self) -> States:
        """The positions as a network sees them."""
        output_SA = np.tile(np.arange(self.legal_SA.shape[1]), (len(self.seats), 1))
        return States(self.name, self.seats, self.features, self.legal_SA, output_SA)

    def sample(
        self, games: int, generator: np.random.Generator, opening: int, policy_SA: FloatArray
    ) -> Played:
        """Play games against oneself; return the decisions that are learned."""
        random_SA = self.legal_SA / self.legal_SA.sum(axis=1, keepdims=True)
        cumulated_2SA = np.stack([policy_SA, random_SA]).cumsum(axis=2)
        random_moves = generator.integers(0, opening, games, endpoint=True) if opening else np.zeros(games)
        playing, position = np.arange(games), np.zeros(games, dtype=np.int64)
        first_earns = np.zeros(games)
        decisions: list[tuple[IntArray, IntArray, IntArray]] = []
        seats, moves = np.array(self.seats), 0
        while len(playing):
            here = position[playing]
            is_random = random_moves[playing] > moves
            cumulated = cumulated_2SA[is_random.astype(int), here]
            drawn = generator.random(len(playing)) * cumulated[:, -1]
            action = np.minimum((drawn[:, None] >= cumulated).sum(axis=1), policy_SA.shape[1] - 1)
            decisions.append((playing[~is_random], here[~is_random], action[~is_random]))
            position[playing] = self.next_SA[here, action]
            first_earns[playing] += np.where(seats[here] == 0, 1, -1) * self.end_SA[here, action]
            playing = playing[position[playing] >= 0]
            moves += 1
        game, state, action = (np.concatenate(one) for one in zip(*decisions, strict=True))
        return state, action, np.where(seats[state] == 0, 1.0, -1.0) * first_earns[game], game

    def held(self, policy_SA: FloatArray) -> float:
        """Return the share of games not lost against perfect play, over the seats that need not lose."""
        perfect_SA = self.best_SA / self.best_SA.sum(axis=1, keepdims=True)
        seats = [seat for seat, value in enumerate((self.value, -self.value)) if value >= 0]
        return float(np.mean([self._not_lost(policy_SA, perfect_SA, seat) for seat in seats]))

    def _not_lost(self, policy_SA: FloatArray, perfect_SA: FloatArray, seat: int) -> float:
        known: dict[int, float] = {}

        def visit(number: int) -> float:
            if number not in known:
                own = self.seats[number] == seat
                chances = (policy_SA if own else perfect_SA)[number]
                known[number] = 0.0
                for action in np.flatnonzero(chances):
                    after, end = int(self.next_SA[number, action]), self.end_SA[number, action]
                    kept = visit(after) if after >= 0 else float((end if own else -end) >= 0)
                    known[number] += float(chances[action]) * kept
            return known[number]

        return visit(0)


def learn(positions: Positions, row: Row, seed: int, options: argparse.Namespace) -> Iterator[float]:
    """Yield what is held at each of four evaluations, then the entropy."""
    generator, states = np.random.default_rng(seed), positions.states
    learner = Learner(states, row.training, seed, options.updates)
    met = np.zeros(0, dtype=np.int64)
    for number in range(1, options.updates + 1):
        met = learner.update(partial(positions.sample, options.games, generator, row.opening))
        if number % (options.updates // 4) == 0:
            yield positions.held(learner.policy(learner.averages[""]))
    policy_SA = learner.policy(learner.network)[met]
    yield float(-(policy_SA * np.log(np.maximum(policy_SA, LEAST))).sum(axis=1).mean())


def main() -> None:
    """Print a row for each loss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--game", default="tic_tac_toe")
    parser.add_argument("--games", type=int, default=48)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", choices=list(ROWS), default="losses")
    options = parser.parse_args()
    pin_one_thread()
    positions = Positions.of(options.game)
    rows = []
    for row in ROWS[options.rows]:
        runs = np.array([[*learn(positions, row, seed, options)] for seed in range(options.seeds)])
        held = [f"{100 * one.mean():.0f}% ({100 * one.min():.0f}%)" for one in runs.T[:-1]]
        training = row.training
        method, rate = training.method, f"{training.rate:g}"
        loss = [method.loss, "" if method.loss == "reinforce" else f"{method.alpha:g}"]
        rows.append([*loss, row.changes, rate, str(training.epochs), *held, f"{runs.T[-1].mean():.2f}"])
        print(" ".join(rows[-1]), flush=True)
    after = [str(options.updates * part // 4) for part in range(1, 5)]
    print_table(["loss", "alpha", "changes", "rate", "steps", *after, "entropy"], rows)


if __name__ == "__main__":
    main()
