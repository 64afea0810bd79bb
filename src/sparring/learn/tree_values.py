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
or of seats that are not listed. With their frequencies f(c) over all batches, this one included, or over the
last few that were here if such seats may change,

    V(h,a) = sum_c f(c) b(c) + sum_c n(c) / n(h,a) (V(c) - b(c))

and the value of an end is its rewards. The memory moves from b towards the new value V by the share
max(``STEP``, 1 / number of batches). An answer that is not legal is no part of pi. A decision without legal
answers, or at which nothing is known of any, is worth the mean of its games.

A state I, which is what a seat was asked, may be reached by many histories. The advantage of an answer in it
is the mean of Q(h,a) - V(h) of its seat, over those that the batch met and of which an earlier batch knew
something, with the weight

    w(h) = G x_own(h) / (1 - (1 - x(h))^G),    A(I,a) = sum_h w(h) (Q(h,a) - V(h)) / sum_h w(h) * n / (n + .5)

where n counts the games that met these histories, G is the number of the batch's games, x(h) the probability
of a history by what the answers were drawn from, and x_own(h) that if all other seats had drawn from pi. So a
history has its weight under the policy, whatever was drawn to explore.

In tables (``benchmarks/magnet_in_tables.py``), these values alone take NashConv in Leduc poker from 0.40 to
0.27, and exploration with a weaker pull takes it from there to 0.12.

Letters: R rows of the memory, N decisions of the batch, L legal answers to them, A legal answers to the
states, S seats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.learn.game_tree import GameTree, HistoryGame, ListedAnswers, Policy, sums_of
from sparring.learn.histories import NO_ROW, HistoryMemory
from sparring.learn.histories import STATE as ROWS
from sparring.learn.legal_answers import FloatArray

MOST_ROWS = 200_000
"""Rows that are remembered between batches."""
STEP = 0.3
LEAST = 0.3
PRIOR = 0.5
"""Games without a gain that are added to a state's known ones: the .5 above."""
TINY = 1e-300
"""In place of 0 where something is divided by it."""
STATE = (*ROWS, "seats")


@dataclass(frozen=True)
class StateValue:
    """What the legal answers to a prompt are worth, above what the policy gets, in units of reward.

    ``advantages`` are means over the histories of which an earlier batch knew something. ``weight`` is the
    sum of the w(h) of these, and ``known`` their share of that of all. ``games`` is how often it was asked.
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

    def add(self, games: Sequence[HistoryGame], policy: Policy) -> dict[bytes, StateValue]:
        """Return the value of each prompt of the policy that the games met, and remember the games."""
        if not games:
            return {}
        for game in games:
            for name in game.rewards:
                self._seats.setdefault(name, len(self._seats))
        backup = _Backup(self._memory, GameTree(self._memory, self._seats, games), policy)
        values = backup.states(policy)
        backup.remember()
        self._memory.drop()
        return values


class _Backup:
    """The values of a tree's rows and the gains of its answers, worked out from the ends up."""

    def __init__(self, memory: HistoryMemory, tree: GameTree, policy: Policy) -> None:
        self._memory, self._tree = memory, tree
        self._listed = ListedAnswers(memory, tree, policy)
        self._value_MS = tree.end_MS.copy()
        self._gain_L = np.zeros(len(self._listed.of_L))
        for depth in reversed(range(len(tree.levels) - 1)):
            if depth % 2 == 0:
                self._after_answers(depth)
            else:
                self._at_decisions(depth)

    def _after_answers(self, depth: int) -> None:
        """Set the values of rows after an answer."""
        tree, (level, below) = self._tree, self._tree.levels[depth : depth + 2]
        row_B = tree.row_M[below]
        base_BS = self._memory.values_RS[row_B]  # 0 where nothing is known
        share_B = tree.games_M[below] / tree.games_M[tree.parent_M[below]]
        share_B = np.where(self._memory.batches_R[row_B] > 0, share_B, tree.share_M[below])
        change_BS = share_B[:, None] * (self._value_MS[below] - base_BS)
        self._value_MS[level] = tree.expected_MS[level] + tree.sums(depth, change_BS)

    def _at_decisions(self, depth: int) -> None:
        """Set the values of decisions: the means of their games, or what is known of their answers."""
        tree, (level, below) = self._tree, self._tree.levels[depth : depth + 2]
        parent_B = tree.parent_M[below]
        share_B = tree.games_M[below] / tree.games_M[parent_B]
        mean_BS = tree.sums(depth, share_B[:, None] * self._value_MS[below])
        decisions = np.unique(parent_B)  # the other rows are ends
        self._value_MS[decisions] = mean_BS[decisions - level.start]
        start, stop = np.searchsorted(self._listed.node_N, [level.start, level.stop]).tolist()
        if start < stop:
            self._at_listed(start, stop)

    def _at_listed(self, start: int, stop: int) -> None:
        """Set the values of decisions, and the gains of the legal answers to them, if any is known."""
        tree, listed = self._tree, self._listed
        own, node_N = slice(listed.start_N[start], listed.start_N[stop]), listed.node_N[start:stop]
        of_L, size = listed.of_L[own] - start, stop - start
        place_L, known_L, pi_L1 = listed.place_L[own], listed.known_L[own], listed.pi_L[own, None]
        met_L = place_L != NO_ROW
        value_LS = self._value_MS[place_L]
        base_LS = np.where((met_L & ~known_L)[:, None], value_LS, listed.base_LS[own])
        based_L1 = pi_L1 * (met_L | known_L)[:, None]
        mass_N1 = sums_of(of_L, based_L1, size)
        mean_NS = sums_of(of_L, based_L1 * base_LS, size) / np.maximum(mass_N1, TINY)
        base_LS = np.where(based_L1 > 0, base_LS, mean_NS[of_L])
        given_L = 1 - (1 - tree.drawn_M[place_L]) ** tree.games_M[node_N][of_L]
        step_L = met_L / np.maximum(given_L, LEAST)
        q_LS = base_LS + step_L[:, None] * (value_LS - base_LS)
        value_NS = np.where(mass_N1 > 0, sums_of(of_L, pi_L1 * q_LS, size), self._value_MS[node_N])
        self._value_MS[node_N] = value_NS
        gain_LS = np.where(mass_N1[of_L] > 0, q_LS - value_NS[of_L], 0.0)
        self._gain_L[own] = gain_LS[np.arange(len(of_L)), tree.seat_M[node_N][of_L]]

    def _weights(self) -> FloatArray:
        """Return w_N, from the probabilities of the histories."""
        tree, listed = self._tree, self._listed
        pi_M, met_L = tree.drawn_M.copy(), listed.place_L != NO_ROW
        pi_M[listed.place_L[met_L]] = listed.pi_L[met_L]
        total_M, drawn_M, wanted_MS = tree.games_M.copy(), tree.share_M.copy(), np.ones_like(tree.end_MS)
        for depth, level in list(enumerate(tree.levels))[1:]:
            above = tree.parent_M[level]
            total_M[level] = total_M[above]
            wanted_MS[level] = wanted_MS[above]
            if depth % 2 == 0:
                drawn_M[level] = tree.drawn_M[level]
                wanted_BS = np.tile(pi_M[level, None], wanted_MS.shape[1])
                wanted_BS[np.arange(len(above)), tree.seat_M[above]] = tree.drawn_M[level]
                wanted_MS[level] *= wanted_BS
            else:
                wanted_MS[level] *= tree.share_M[level, None]
            drawn_M[level] *= drawn_M[above]
        node_N = listed.node_N
        total_N, x_N = total_M[node_N], np.clip(drawn_M[node_N], TINY, 1.0)
        with np.errstate(divide="ignore"):
            met_N = -np.expm1(total_N * np.log1p(-x_N))
        weight_N: FloatArray = total_N * wanted_MS[node_N, tree.seat_M[node_N]] / met_N
        return weight_N

    def states(self, policy: Policy) -> dict[bytes, StateValue]:
        """Return what the answers to each prompt that was met are worth."""
        listed, weight_N, size = self._listed, self._weights(), sum(map(len, policy.values()))
        is_known_N = np.bincount(listed.of_L, listed.known_L, len(weight_N)) > 0
        games_N, known_N = self._tree.games_M[listed.node_N], weight_N * is_known_N
        sums_A = sums_of(listed.answer_L, known_N[listed.of_L] * self._gain_L, size).tolist()
        games_A, entered_A, weights_A, known_A = (
            sums_of(listed.first_N, number_N, size).tolist()
            for number_N in (games_N, games_N * is_known_N, weight_N, known_N)
        )
        found, first = {}, 0
        for asked, answers in policy.items():
            games, weight, known = games_A[first], weights_A[first], known_A[first]
            entered, own = entered_A[first], sums_A[first : first + len(answers)]
            first += len(answers)
            if games:
                factor = entered / (entered + PRIOR) / max(known, TINY)
                gains = {answer: factor * one for answer, one in zip(answers, own, strict=True)}
                found[asked] = StateValue(gains, int(games), known, known / max(weight, TINY))
        return found

    def remember(self) -> None:
        """Move the memory towards the values."""
        memory, rows = self._memory, self._tree.row_M
        memory.batches_R[rows] += 1
        step_M = np.maximum(STEP, 1 / memory.batches_R[rows])
        memory.values_RS[rows] += step_M[:, None] * (self._value_MS - memory.values_RS[rows])
        memory.met_R[rows] = memory.met_R.max() + 1
