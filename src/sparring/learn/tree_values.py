"""Tree values: what each legal answer was worth, by the games that went on in the same way.

The return of a game is noisy: it depends on the cards, and on all that was answered later. Here the games of
a batch are one tree of histories (see ``histories``), whose values are worked out from the ends up with the
probabilities of the policy, and what earlier batches found of a history is a control variate (as in VR-MCCFR,
Schmid et al. 2019, arXiv 1809.03057, and DREAM, Steinberger et al. 2020, arXiv 2006.10410).

Let n be numbers of games in the batch, pi(a) the policy's probability of an answer among the legal ones
before the update, mu(a) the chance with which it was drawn, and b the values of the memory. All values are
vectors with a number for each seat. At a decision h,

    Q(h,a) = b(h,a) + [n(h,a) > 0] (V(h,a) - b(h,a)) / P(a),    P(a) = max(``LEAST``, 1 - (1 - mu(a))^n(h))
    V(h) = sum_a pi(a) Q(h,a)

A baseline that is not known yet is V(h,a) if the batch gave the answer, and otherwise the pi-mean of those of
the other answers. So in a history that is met for the first time, by one game, nothing is better than
anything else. After an answer, and at the beginning, a game may go on in several ways c: because of chance,
or of seats that are not listed. With their frequencies f(c), over about the last 1 / (1 - ``FADING``) batches
that were here,

    V(h,a) = sum_c f(c) b(c) + sum_c n(c) / n(h,a) (V(c) - b(c))

and the value of an end is its rewards. The memory moves from b towards the new value V by the share
max(``STEP``, 1 / number of batches). An answer that is not legal is no part of pi. A decision without legal
answers, or at which nothing is known of any, is worth the mean of its games.

A state I, which is what a seat was asked, may be reached by many histories. The advantage of an answer in it
is the mean of Q(h,a) - V(h) of its seat over those that the batch met, with the weight

    w(h) = G x_own(h) / (1 - (1 - x(h))^G),    A(I,a) = sum_h w(h) (Q(h,a) - V(h)) / sum_h w(h) * n / (n + .5)

where G is the number of the batch's games, x(h) the probability of a history by what the answers were drawn
from, and x_own(h) that if all other seats had drawn from pi. So a history has its weight under the policy,
whatever was drawn to explore.

In tables (``benchmarks/magnet_in_tables.py``).

Letters: R rows of the memory, N decisions of the batch, L legal answers to them, A legal answers to the
states, S seats.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.learn.histories import KEY_BYTES, NO_ROW, HistoryMemory
from sparring.learn.histories import STATE as ROWS
from sparring.learn.legal_answers import FloatArray, IntArray

MOST_ROWS = 200_000
STEP = 0.3
LEAST = 0.3
FADING = 0.95
PRIOR = 0.5
TINY = 1e-300
STATE = (*ROWS, "seats")


class Decision(NamedTuple):
    """A step of a game: the seat, the keys of what it was asked and answered, and the chance of the draw."""

    seat: str
    asked: bytes
    drawn: bytes
    chance: float


class PlayedGame(NamedTuple):
    """The decisions of a game in their order over all seats, and the rewards of those with decisions.

    Games are compared with those of the same name. All keys have 16 bytes.
    """

    name: str
    decisions: Sequence[Decision]
    rewards: Mapping[str, float]


Policy = Mapping[bytes, Mapping[bytes, float]]
"""The probability of each legal answer, one or more, by the keys of what was asked and of the answer."""


@dataclass(frozen=True)
class StateValue:
    """What the legal answers to a prompt are worth, above what the policy gets, in units of reward.

    ``games`` is how often it was asked. ``weight`` is the sum of the w(h) of its histories, and ``known`` the
    share of it in histories of which an earlier batch knew something.
    """

    advantages: Mapping[bytes, float]
    games: int
    weight: float
    known: float


class TreeValues:
    """Makes values of the games of one batch after the other, and remembers their histories."""

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._memory = HistoryMemory(most)
        self._seats: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._memory)

    def state(self) -> dict[str, Tensor]:
        """Return the memory and the names of the seats as tensors by name; nothing at the beginning."""
        names = torch.tensor(list("\0".join(self._seats).encode()), dtype=torch.uint8)
        return self._memory.state() | ({"seats": names} if self._seats else {})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`."""
        self._memory = HistoryMemory.of(self._memory.most, state)
        names = bytes(state["seats"].tolist()).decode().split("\0") if state else []
        self._seats = {name: number for number, name in enumerate(names)}

    def add(self, games: Sequence[PlayedGame], policy: Policy) -> dict[bytes, StateValue]:
        """Return the value of each prompt of the policy that the games met, and remember the games."""
        if not games:
            return {}
        for game in games:
            for name in game.rewards:
                self._seats.setdefault(name, len(self._seats))
        tree = _Tree(self._memory, self._seats, games, policy)
        tree.back_up()
        values = tree.states(policy)
        tree.remember()
        self._memory.drop()
        return values


class _Tree:
    """The tree of a batch's games: M rows that were met, in the order of their depth."""

    def __init__(
        self,
        memory: HistoryMemory,
        seats: Mapping[str, int],
        games: Sequence[PlayedGame],
        policy: Policy,
    ) -> None:
        self._memory = memory
        paths = _Paths(memory, games)
        memory.widen(len(seats))
        games_R = np.bincount(paths.rows, minlength=len(memory)).astype(np.float64)
        (met,) = np.nonzero(games_R)
        self._row_M = met[np.argsort(memory.depths_R[met], kind="stable")]
        self._place_R = np.full(len(memory) + 1, NO_ROW)  # the last is that of no row
        self._place_R[self._row_M] = np.arange(len(self._row_M))
        self._parent_M = self._place_R[memory.parents_R[self._row_M]]
        starts = np.flatnonzero(np.diff(memory.depths_R[self._row_M], prepend=-1, append=-1))
        self._levels = [slice(*bounds) for bounds in pairwise(starts.tolist())]
        self._games_M = games_R[self._row_M]
        self._known_M = memory.batches_R[self._row_M] > 0
        self._value_MS = np.zeros((len(self._row_M), memory.values_RS.shape[1]))
        for row, rewards in paths.ends.items():
            self._value_MS[self._place_R[row], [seats[name] for name in rewards]] = list(rewards.values())
        self._drawn_M = sums_of(self._place_R[paths.given], np.array(paths.chances), len(self._row_M))
        self._drawn_M /= self._games_M
        self._seat_M = np.zeros(len(self._row_M), dtype=np.int64)
        self._seat_M[self._place_R[list(paths.decisions)]] = [
            seats[one.seat] for one in paths.decisions.values()
        ]
        self._count_ways()
        self._list_answers(paths.decisions, policy)

    def _count_ways(self) -> None:
        """Set f of each way in which games went on, and sum_c f(c) b(c) after each answer."""
        memory, own = self._memory, self._row_M[self._memory.depths_R[self._row_M] % 2 == 1]
        ways = np.flatnonzero((memory.depths_R % 2 == 1) & (self._place_R[memory.parents_R] != NO_ROW))
        memory.counts_R[ways] *= FADING
        memory.counts_R[own] += self._games_M[self._place_R[own]]
        parent_W = self._place_R[memory.parents_R[ways]]
        share_W = memory.counts_R[ways]
        share_W /= sums_of(parent_W, share_W, len(self._row_M))[parent_W]
        # A way that is new has the value 0 in the memory.
        self._expected_MS = sums_of(parent_W, share_W[:, None] * memory.values_RS[ways], len(self._row_M))
        self._share_M = np.ones(len(self._row_M))
        is_met_W = self._place_R[ways] != NO_ROW
        self._share_M[self._place_R[ways[is_met_W]]] = share_W[is_met_W]

    def _list_answers(self, decisions: Mapping[int, Decision], policy: Policy) -> None:
        """List the legal answers to all decisions, and all that is known of them."""
        memory, first, answers, pi = self._memory, dict[bytes, int](), list[bytes](), list[float]()
        for asked, probabilities in policy.items():
            first[asked] = len(answers)
            answers += probabilities
            pi += probabilities.values()
        nodes = [row for row in self._row_M.tolist() if row in decisions and decisions[row].asked in policy]
        first_N = np.array([first[decisions[row].asked] for row in nodes], dtype=np.int64)
        count_N = np.array([len(policy[decisions[row].asked]) for row in nodes], dtype=np.int64)
        find = memory.find
        rows = [find(row, answer) for row in nodes for answer in policy[decisions[row].asked]]
        row_L = np.array(rows, dtype=np.int64)
        self._node_N, self._first_N = self._place_R[nodes], first_N
        self._start_N = np.cumsum([0, *count_N])
        self._of_L = np.repeat(np.arange(len(nodes)), count_N)
        self._answer_L = np.arange(len(rows)) + (first_N - self._start_N[:-1])[self._of_L]
        self._pi_L = np.array(pi)[self._answer_L]
        self._place_L = self._place_R[row_L]
        self._known_L = (row_L != NO_ROW) & (memory.batches_R[row_L] > 0)
        self._base_LS = np.where(self._known_L[:, None], memory.values_RS[row_L], 0.0)
        self._gain_L = np.zeros(len(row_L))

    def back_up(self) -> None:
        """Work out the value of each row and the gain of each answer, from the ends up."""
        below, stop = slice(0, 0), len(self._node_N)
        for level in reversed(self._levels):
            if self._is_after_answer(level):
                self._back_up_ways(level, below)
            elif below.stop > below.start:
                self._back_up_means(level, below)
                start = int(np.searchsorted(self._node_N, level.start))
                self._back_up_answers(start, stop)
                stop = start
            below = level

    def _is_after_answer(self, level: slice) -> bool:
        return bool(self._memory.depths_R[self._row_M[level.start]] % 2 == 0)

    def _back_up_ways(self, level: slice, below: slice) -> None:
        """Set the values of rows after an answer."""
        base_BS = self._memory.values_RS[self._row_M[below]]  # 0 where nothing is known
        games_B = self._games_M[below] / self._games_M[self._parent_M[below]]
        share_B = np.where(self._known_M[below], games_B, self._share_M[below])
        change_BS = share_B[:, None] * (self._value_MS[below] - base_BS)
        self._value_MS[level] = self._expected_MS[level] + self._sums(level, below, change_BS)

    def _back_up_means(self, level: slice, below: slice) -> None:
        """Set the values of decisions to the means of their games; ends keep theirs."""
        share_B = self._games_M[below] / self._games_M[self._parent_M[below]]
        means = self._sums(level, below, share_B[:, None] * self._value_MS[below])
        decisions = np.unique(self._parent_M[below])
        self._value_MS[decisions] = means[decisions - level.start]

    def _sums(self, level: slice, below: slice, number_BS: FloatArray) -> FloatArray:
        return sums_of(self._parent_M[below] - level.start, number_BS, level.stop - level.start)

    def _back_up_answers(self, start: int, stop: int) -> None:
        """Set the values of decisions that have legal answers of which anything is known."""
        own = slice(self._start_N[start], self._start_N[stop])
        place_L, known_L, pi_L = self._place_L[own], self._known_L[own], self._pi_L[own, None]
        of_L, size = self._of_L[own] - start, stop - start
        met_L, node_N = place_L != NO_ROW, self._node_N[start:stop]
        value_LS = self._value_MS[place_L]
        base_LS = np.where((met_L & ~known_L)[:, None], value_LS, self._base_LS[own])
        is_based_L1 = (known_L | met_L)[:, None]
        mass_N1 = sums_of(of_L, is_based_L1 * pi_L, size)
        mean_NS = sums_of(of_L, is_based_L1 * pi_L * base_LS, size) / np.maximum(mass_N1, TINY)
        base_LS = np.where(is_based_L1, base_LS, mean_NS[of_L])
        chance_L = 1 - (1 - np.minimum(self._drawn_M[place_L], 1.0)) ** self._games_M[node_N][of_L]
        step_L = met_L / np.maximum(chance_L, LEAST)
        q_LS = base_LS + step_L[:, None] * (value_LS - base_LS)
        value_NS = np.where(mass_N1 > 0, sums_of(of_L, pi_L * q_LS, size), self._value_MS[node_N])
        self._value_MS[node_N] = value_NS
        gain_LS = np.where(mass_N1[of_L] > 0, q_LS - value_NS[of_L], 0.0)
        self._gain_L[own] = gain_LS[np.arange(len(of_L)), self._seat_M[node_N][of_L]]

    def _weights(self) -> FloatArray:
        """Return w_N, from the probabilities of the histories."""
        pi_M = self._drawn_M.copy()
        met_L = self._place_L != NO_ROW
        pi_M[self._place_L[met_L]] = self._pi_L[met_L]
        total_M, drawn_M = self._games_M.copy(), np.ones(len(self._row_M))
        wanted_MS = np.ones_like(self._value_MS)
        for level in self._levels[1:]:
            above = self._parent_M[level]
            total_M[level] = total_M[above]
            if self._is_after_answer(level):
                drawn_B, wanted_BS = self._drawn_M[level], np.tile(pi_M[level, None], wanted_MS.shape[1])
                wanted_BS[np.arange(len(above)), self._seat_M[above]] = drawn_B
            else:
                drawn_B, wanted_BS = self._share_M[level], self._share_M[level, None]
            drawn_M[level], wanted_MS[level] = drawn_M[above] * drawn_B, wanted_MS[above] * wanted_BS
        total_N, x_N = total_M[self._node_N], np.clip(drawn_M[self._node_N], TINY, 1.0)
        with np.errstate(divide="ignore"):
            met_N = -np.expm1(total_N * np.log1p(-x_N))
        weight_N: FloatArray = total_N * wanted_MS[self._node_N, self._seat_M[self._node_N]] / met_N
        return weight_N

    def states(self, policy: Policy) -> dict[bytes, StateValue]:
        """Return what the answers to each prompt that was met are worth."""
        weight_N, size = self._weights(), sum(map(len, policy.values()))
        sums_A = sums_of(self._answer_L, weight_N[self._of_L] * self._gain_L, size)
        is_known_N = sums_of(self._of_L, self._known_L, len(weight_N)) > 0
        games_A, weights_A, known_A = (
            sums_of(self._first_N, number_N, size)
            for number_N in (self._games_M[self._node_N], weight_N, weight_N * is_known_N)
        )
        found, first = {}, 0
        for asked, answers in policy.items():
            games, weight, known = games_A[first], weights_A[first], known_A[first]
            if games:
                factor = games / (games + PRIOR) / max(weight, TINY)
                advantages = (factor * sums_A[first : first + len(answers)]).tolist()
                share = float(known / max(weight, TINY))
                found[asked] = StateValue(
                    dict(zip(answers, advantages, strict=True)), int(games), float(weight), share
                )
            first += len(answers)
        return found

    def remember(self) -> None:
        """Move the memory towards the values."""
        memory, rows = self._memory, self._row_M
        memory.batches_R[rows] += 1
        step_M = np.maximum(STEP, 1 / memory.batches_R[rows])
        memory.values_RS[rows] += step_M[:, None] * (self._value_MS - memory.values_RS[rows])
        memory.met_R[rows] = memory.met_R.max() + 1


class _Paths:
    """The rows of games, one game after the other."""

    def __init__(self, memory: HistoryMemory, games: Iterable[PlayedGame]) -> None:
        self.rows: list[int] = []
        self.given: list[int] = []
        self.chances: list[float] = []
        self.decisions: dict[int, Decision] = {}
        self.ends: dict[int, Mapping[str, float]] = {}
        keys = dict[tuple[str, bytes], bytes]()
        for game in games:
            row, depth = memory.row(NO_ROW, _key(game.name), 0), 0
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


END = b"end"


def _key(text: str, key: bytes = b"") -> bytes:
    return blake2b(text.encode(), digest_size=KEY_BYTES, key=key).digest()


def sums_of(index_X: IntArray, number_X: FloatArray, size: int) -> FloatArray:
    """Return the sums of numbers, or of rows of them, with the same index below ``size``."""
    if number_X.ndim == 1:
        return np.bincount(index_X, number_X, size)
    return np.stack([np.bincount(index_X, column, size) for column in number_X.T], axis=1)
