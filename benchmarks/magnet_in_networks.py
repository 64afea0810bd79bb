"""What losses over legal answers do where few games meet a position: a small network learns TicTacToe.

In ``magnet_in_tables.py`` every position has numbers of its own, and most are met by many games. Here a
network of two layers answers all positions, as a language model does, and an update has few games, so most
positions are met by one. Values, losses and magnet are those of ``magnet_in_tables``; positions count by the
square root of the games that meet them, and the steps are Adam's.

The table gives the share of games that the slower average (0.95) draws against perfect play, which draws one
of its best moves, in the mean over both seats: computed exactly, after some updates, in the mean over seeds
and in brackets the smallest. Nobody wins against perfect play; uniformly random play draws an eighth.
``entropy`` is that of the policy over legal moves at the end, in nats, over the positions of the last games.
``reinforce`` is the plain policy gradient of mirror self-play.

Command:  python benchmarks/magnet_in_networks.py [--games 48] [--updates 200] [--seeds 3]
Needs:    this package. About a minute of one core for a row.
"""

import argparse
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyspiel
import torch

from game_trees import BoolArray, FloatArray, IntArray
from magnet_in_tables import DECAY, SLOW_DECAY, SQUARES_DECAY, UNIFORM, Method, Values, normalised, step_of
from measuring import pin_one_thread, print_table

GAME = "tic_tac_toe"
WIDTH = 256
"""Size of the network's two hidden layers."""
SEATS = 2


@dataclass(frozen=True)
class Row:
    """A loss, the rate of its steps and their number in an update. A ``method`` of ``None`` is reinforce.

    Games begin with between 0 and ``opening`` random moves, from which nothing is learned.
    """

    method: Method | None
    rate: float = 1e-3
    epochs: int = 2
    opening: int = 0

    @property
    def changes(self) -> str:
        """What differs from the loss alone."""
        opening = f"opening {self.opening}" if self.opening else ""
        return ", ".join(filter(None, [self.method.changes if self.method else "", opening]))


CROSS_ENTROPY, POLICY, NEURD = (Method(loss, alpha=0.3) for loss in ("magnet", "policy", "neurd"))
MORE = 0.8
"""The default alpha."""
ROWS = [
    Row(None, epochs=1),
    *(Row(one, rate) for one in (CROSS_ENTROPY, POLICY, NEURD) for rate in (1e-3, 3e-3)),
    *(Row(replace(one, alpha=MORE), 3e-3) for one in (CROSS_ENTROPY, POLICY, NEURD)),
    Row(replace(CROSS_ENTROPY, corrected=True), 3e-3),
    *(Row(replace(one, corrected=False), 3e-3) for one in (POLICY, NEURD)),
    *(Row(replace(one, alpha=MORE, corrected=False), 3e-3) for one in (POLICY, NEURD)),
    Row(replace(POLICY, alpha=MORE, tracked=False), 3e-3),
    *(Row(replace(CROSS_ENTROPY, eta=eta), 3e-3) for eta in (0.4, 4.0)),
    *(Row(one, epochs=8) for one in (CROSS_ENTROPY, POLICY, replace(POLICY, alpha=MORE))),
    Row(replace(POLICY, alpha=MORE), 6e-3, epochs=1),
    Row(replace(CROSS_ENTROPY, memory=16.0), 3e-3),
    *(Row(replace(one, alpha=MORE, memory=16.0), 3e-3) for one in (CROSS_ENTROPY, POLICY, NEURD)),
    *(Row(replace(POLICY, alpha=MORE, memory=16.0), 3e-3, opening=most) for most in (1, 2, 4)),
]
"""The rows of the table."""


@dataclass
class Positions:
    """All S positions of the game in which a player moves, whichever moves led there.

    ``next_SA`` is the position after a move, -1 where the game ends, and ``end_SA`` what the mover earns
    there. ``best_SA`` tells which moves keep the value of the position.
    """

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
        found = cls()

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

    def sample(
        self, policy_SA: FloatArray, games: int, generator: np.random.Generator, opening: int = 0
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Play games against oneself; return position, action and reward of each decision that is learned."""
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
        return state, action, np.where(seats[state] == 0, 1.0, -1.0) * first_earns[game]

    def drawn(self, policy_SA: FloatArray) -> float:
        """Return the share of games that a policy draws or wins against perfect play, over both seats."""
        perfect_SA = self.best_SA / self.best_SA.sum(axis=1, keepdims=True)
        return float(np.mean([self._not_lost(policy_SA, perfect_SA, seat) for seat in range(SEATS)]))

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


class Learner:
    """A network, its reference and its slower average."""

    def __init__(self, positions: Positions, row: Row, seed: int) -> None:
        torch.manual_seed(seed)
        self.positions, self.row = positions, row
        self.features_SF = torch.tensor(positions.features)
        layers = [torch.nn.Linear(self.features_SF.shape[1], WIDTH), torch.nn.Linear(WIDTH, WIDTH)]
        last = torch.nn.Linear(WIDTH, positions.legal_SA.shape[1])
        self.network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), last)
        self.reference, self.average = deepcopy(self.network), deepcopy(self.network)
        self.values_of = Values.of(row.method or POLICY)
        momentum = 0.0 if row.method is None else 0.8
        self.adam = torch.optim.Adam(self.network.parameters(), row.rate, betas=(momentum, SQUARES_DECAY))

    def policy(self, network: torch.nn.Module) -> FloatArray:
        """Return the logarithms of the probabilities of the legal moves of all positions."""
        with torch.no_grad():
            return normalised(network(self.features_SF).double().numpy(), self.positions.legal_SA)

    def update(self, games: int, number: int, generator: np.random.Generator) -> IntArray:
        """Play and learn; return the positions that were met."""
        legal_SA = self.positions.legal_SA
        policy_SA = np.exp(self.policy(self.network)) * legal_SA
        played = self.positions.sample(policy_SA, games, generator, self.row.opening)
        value_SA, share_S = self.values_of(self.positions.seats, policy_SA, played)
        met = np.flatnonzero(share_S)
        reference_SA = np.exp(self.policy(self.reference)) * legal_SA
        magnet_SA = (1 - UNIFORM) * reference_SA + UNIFORM * legal_SA / legal_SA.sum(axis=1, keepdims=True)
        for _ in range(self.row.epochs):
            logits = self.network(self.features_SF[met])
            policy = normalised(logits.detach().double().numpy(), legal_SA[met])
            if self.row.method is None:
                step = _reinforce(played, met, policy, legal_SA)
            else:
                alpha = np.full((len(met), 1), self.row.method.alpha)
                magnet = normalised(np.log(np.where(legal_SA, magnet_SA, 1.0))[met], legal_SA[met])
                moves = step_of(self.row.method, alpha, policy, magnet, value_SA[met], legal_SA[met])
                root = np.sqrt(share_S[met])
                step = (root / root.sum())[:, None] * moves
            self.adam.zero_grad()
            logits.backward(torch.from_numpy(-step).float())
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.adam.step()
        with torch.no_grad():
            for follower, most in ((self.reference, DECAY), (self.average, SLOW_DECAY)):
                decay = min(most, number / (number + 1))
                for old, new in zip(follower.parameters(), self.network.parameters(), strict=True):
                    old.lerp_(new, 1 - decay)
        return met


def _reinforce(
    played: tuple[IntArray, IntArray, FloatArray], met: IntArray, policy: FloatArray, legal_SA: BoolArray
) -> FloatArray:
    """Return how the policy gradient of the rewards above their mean moves the logits."""
    state, action, reward = played
    push_SA = np.zeros(legal_SA.shape)
    np.add.at(push_SA, (state, action), (reward - reward.mean()) / len(state))
    push = push_SA[met]
    return push - np.exp(policy) * legal_SA[met] * push.sum(axis=1, keepdims=True)


def learn(positions: Positions, row: Row, seed: int, options: argparse.Namespace) -> Iterator[float]:
    """Yield what is drawn at each of four evaluations, then the entropy."""
    generator = np.random.default_rng(seed)
    learner = Learner(positions, row, seed)
    met = np.zeros(0, dtype=np.int64)
    for number in range(1, options.updates + 1):
        met = learner.update(options.games, number, generator)
        if number % (options.updates // 4) == 0:
            yield positions.drawn(np.exp(learner.policy(learner.average)) * positions.legal_SA)
    policy = learner.policy(learner.network)[met]
    yield float(-(np.exp(policy) * policy).sum(axis=1).mean())


def main() -> None:
    """Print a row for each loss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=48)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pin_one_thread()
    positions = Positions.of(GAME)
    rows = []
    for row in ROWS:
        runs = np.array([[*learn(positions, row, seed, options)] for seed in range(options.seeds)])
        drawn = [f"{100 * one.mean():.0f}% ({100 * one.min():.0f}%)" for one in runs.T[:-1]]
        method = row.method
        loss = ["reinforce", ""] if method is None else [method.loss, f"{method.alpha:g}"]
        rows.append(
            [*loss, row.changes, f"{row.rate:g}", str(row.epochs), *drawn, f"{runs.T[-1].mean():.2f}"]
        )
        print(" ".join(rows[-1]), flush=True)
    after = [str(options.updates * part // 4) for part in range(1, 5)]
    print_table(["loss", "alpha", "changes", "rate", "steps", *after, "entropy"], rows)


if __name__ == "__main__":
    main()
