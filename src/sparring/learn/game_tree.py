"""GameTree: the games of a batch as a tree of histories, with all that is known of them.

Letters: R rows of the memory, M rows that the batch met, in the order of their depth, W ways in which games
went on after answers, N decisions with legal answers, L legal answers to them, A legal answers of the policy,
S seats.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparring.learn.histories import KEY_BYTES, NO_ROW, HistoryMemory
from sparring.learn.legal_answers import BoolArray, FloatArray, IntArray

FADING = 0.8
"""The share of earlier games that still counts in a game with others who may change."""
CHANGING, END = b"changing", b"end"


class HistoryStep(NamedTuple):
    """A step of a game: the seat, the keys of what it was asked and answered, and the chance of the draw."""

    seat: str
    asked: bytes
    drawn: bytes
    chance: float


class HistoryGame(NamedTuple):
    """The decisions of a game in their order over all seats, and the rewards of those with decisions.

    ``changing`` is whether the game may have other seats, who play otherwise from batch to batch. Games are
    compared with those of the same name that are alike in this. All keys have 16 bytes.
    """

    name: str
    decisions: Sequence[HistoryStep]
    rewards: Mapping[str, float]
    changing: bool = False


Policy = Mapping[bytes, Mapping[bytes, float]]
"""The probability of each legal answer, one or more, by the keys of what was asked and of the answer."""


class GameTree:
    """The tree of a batch's games, whose rows are added to the memory and counted there.

    ``levels`` are the rows of each depth among the M. A row has the place of its ``parent_M``, the number of
    its ``games_M``, and the ``share_M`` of games that went on in this way, lately; an answer the chance with
    which it was ``drawn_M``, a decision its ``seat_M``. ``end_MS`` are the rewards of ends, and
    ``expected_MS`` what the memory expects after an answer.
    """

    def __init__(self, memory: HistoryMemory, seats: Mapping[str, int], games: Sequence[HistoryGame]) -> None:
        paths = _Paths(memory, games)
        memory.widen(len(seats))
        games_R = np.bincount(paths.rows, minlength=len(memory)).astype(np.float64)
        (met,) = np.nonzero(games_R)
        self.row_M: IntArray = met[np.argsort(memory.depths_R[met], kind="stable")]
        self.place_R = np.full(len(memory) + 1, NO_ROW)  # the last is that of no row
        self.place_R[self.row_M] = np.arange(len(self.row_M))
        self.parent_M: IntArray = self.place_R[memory.parents_R[self.row_M]]
        depth_M = memory.depths_R[self.row_M]
        starts = np.flatnonzero(np.diff(depth_M, prepend=-1, append=-1))
        self.levels = [slice(*bounds) for bounds in pairwise(starts.tolist())]
        self.games_M: FloatArray = games_R[self.row_M]
        self.end_MS = np.zeros((len(self.row_M), len(seats)))
        for row, rewards in paths.ends.items():
            self.end_MS[self.place_R[row], [seats[name] for name in rewards]] = list(rewards.values())
        drawn_M = sums_of(self.place_R[paths.given], np.array(paths.chances), len(self.row_M))
        self.drawn_M = np.minimum(drawn_M / self.games_M, 1.0)
        self.seat_M = np.zeros(len(self.row_M), dtype=np.int64)
        self.seat_M[self.place_R[list(paths.decisions)]] = [
            seats[one.seat] for one in paths.decisions.values()
        ]
        self.decisions = paths.decisions
        """A decision at each row."""
        fading_M = np.ones(len(self.row_M))
        fading_M[self.place_R[list(paths.fading)]] = list(paths.fading.values())
        for level in self.levels[1:]:
            fading_M[level] = fading_M[self.parent_M[level]]
        self._count_ways(memory, fading_M)

    def _count_ways(self, memory: HistoryMemory, fading_M: FloatArray) -> None:
        places = np.flatnonzero(memory.depths_R[self.row_M] % 2)
        ways = np.flatnonzero((memory.depths_R % 2 == 1) & (self.place_R[memory.parents_R] != NO_ROW))
        memory.counts_R[ways] *= fading_M[self.place_R[memory.parents_R[ways]]]
        memory.counts_R[self.row_M[places]] += self.games_M[places]
        parent_W, count_W = self.place_R[memory.parents_R[ways]], memory.counts_R[ways]
        total_M = sums_of(parent_W, count_W, len(self.row_M))
        share_W = count_W / total_M[parent_W]
        # A way that is new has the value 0 in the memory.
        self.expected_MS = sums_of(parent_W, share_W[:, None] * memory.values_RS[ways], len(self.row_M))
        self.share_M = np.ones(len(self.row_M))
        self.share_M[places] = memory.counts_R[self.row_M[places]] / total_M[self.parent_M[places]]

    def sums(self, depth: int, number_BS: FloatArray) -> FloatArray:
        """Return, for the rows of a level, the sums of what the rows below them have."""
        level, below = self.levels[depth : depth + 2]
        return sums_of(self.parent_M[below] - level.start, number_BS, level.stop - level.start)


class ListedAnswers:
    """The legal answers to the decisions of a tree.

    ``node_N`` are the places of the decisions among the M, ``first_N`` the first of their answers among the
    A, and ``start_N`` that among the L. An answer has its decision ``of_L``, its number ``answer_L`` among
    the A, its probability ``pi_L``, its ``place_L`` among the M or ``NO_ROW``, and whether it is ``known_L``
    in the memory, with which value, ``base_LS``.
    """

    def __init__(self, memory: HistoryMemory, tree: GameTree, policy: Policy) -> None:
        first, answers, pi = dict[bytes, int](), list[bytes](), list[float]()
        for asked, probabilities in policy.items():
            first[asked] = len(answers)
            answers += probabilities
            pi += probabilities.values()
        asked_at = {row: one.asked for row, one in tree.decisions.items() if one.asked in policy}
        nodes = [row for row in tree.row_M.tolist() if row in asked_at]
        count_N = np.array([len(policy[asked_at[row]]) for row in nodes], dtype=np.int64)
        rows = [memory.find(row, answer) for row in nodes for answer in policy[asked_at[row]]]
        row_L = np.array(rows, dtype=np.int64)
        self.node_N: IntArray = tree.place_R[nodes]
        self.first_N = np.array([first[asked_at[row]] for row in nodes], dtype=np.int64)
        self.start_N = np.cumsum([0, *count_N])
        self.of_L = np.repeat(np.arange(len(nodes)), count_N)
        self.answer_L: IntArray = np.arange(len(rows)) + (self.first_N - self.start_N[:-1])[self.of_L]
        self.pi_L = np.array(pi)[self.answer_L]
        self.place_L: IntArray = tree.place_R[row_L]
        self.known_L: BoolArray = (row_L != NO_ROW) & (memory.batches_R[row_L] > 0)
        self.base_LS = np.where(self.known_L[:, None], memory.values_RS[row_L], 0.0)


class _Paths:
    """The rows of games, one game after the other."""

    def __init__(self, memory: HistoryMemory, games: Iterable[HistoryGame]) -> None:
        self.fading: dict[int, float] = {}
        """The share of earlier counts that is left in the games of each root."""
        self.rows: list[int] = []
        self.given: list[int] = []
        self.chances: list[float] = []
        self.decisions: dict[int, HistoryStep] = {}
        self.ends: dict[int, Mapping[str, float]] = {}
        keys = dict[tuple[str, bytes], bytes]()
        for game in games:
            row, depth = memory.row(NO_ROW, _key(game.name, CHANGING if game.changing else b""), 0), 0
            self.fading[row] = FADING if game.changing else 1.0
            self.rows.append(row)
            for decision in game.decisions:
                seat, asked, drawn, chance = decision
                if (seat, asked) not in keys:
                    keys[seat, asked] = _key(seat, asked)
                row = memory.row(row, keys[seat, asked], depth + 1)
                self.decisions[row] = decision
                self.rows.append(row)
                depth += 2
                row = memory.row(row, drawn, depth)
                self.rows.append(row)
                self.given.append(row)
                self.chances.append(chance)
            row = memory.row(row, _key(repr(sorted(game.rewards.items())), END), depth + 1)
            self.ends[row] = game.rewards
            self.rows.append(row)


def _key(text: str, key: bytes = b"") -> bytes:
    return blake2b(text.encode(), digest_size=KEY_BYTES, key=key).digest()


def sums_of(index_X: IntArray, number_X: FloatArray, size: int) -> FloatArray:
    """Return the sums of numbers, or of rows of them, with the same index below ``size``."""
    if number_X.ndim == 1:
        return np.bincount(index_X, number_X, size).astype(np.float64, copy=False)
    return np.stack([np.bincount(index_X, column, size) for column in number_X.T], axis=1)
