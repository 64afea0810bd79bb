"""Exact NashConv on a hidden board: best responses to arrays of probabilities, in a minute for millions.

A seat's failed tries change nothing for the other. So the other's probability of a placement, summed over
its own failed tries, is one number a placement, and a best response to it is a backward induction over the
seat's information states, whose terminal values are sums over pairs (``hidden_board.py``).

The letters are those of ``hidden_board.py``.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparring.core import InputError
from sparring.evaluation.hidden_board import FloatArray, HiddenBoard, InformationStates

TOLERANCE = 1e-4
"""By how much the probabilities of a state may differ from 1."""


@dataclass(frozen=True)
class BoardGains:
    """What each seat earns if both play their policy, and with a best response to the other's.

    In these games seat 1 earns what seat 0 loses.
    """

    values: tuple[float, float]
    best_response_values: tuple[float, float]

    @property
    def exploitability(self) -> tuple[float, float]:
        """What each seat gains by a best response."""
        gains = [best - value for best, value in zip(self.best_response_values, self.values, strict=True)]
        return gains[0], gains[1]

    @property
    def nash_conv(self) -> float:
        """The sum of what both gain."""
        return sum(self.exploitability)


def uniform_policy(states: InformationStates) -> FloatArray:
    """Return policy_SA, with the same probability for every legal action."""
    legal_SA = states.legal_SA
    policy_SA: FloatArray = legal_SA / legal_SA.sum(axis=1, keepdims=True)
    return policy_SA


def gains(board: HiddenBoard, policies: tuple[FloatArray, FloatArray]) -> BoardGains:
    """Return the values and best responses of ``policies``, policy_SA of each seat.

    Raises:
        InputError: an array has another shape, or a row has negative or illegal probabilities or another sum
            than 1.
    """
    reaches = []
    for seat, policy_SA in enumerate(policies):
        _check(seat, board.states[seat], policy_SA)
        reaches.append(placement_reach(board, seat, policy_SA))
    value = float((board.placements.payoff_N * reaches[0] * reaches[1]).sum())
    best = [best_response(board, seat, reaches[1 - seat])[0] for seat in (0, 1)]
    return BoardGains((value, -value), (best[0], best[1]))


def _check(seat: int, states: InformationStates, policy_SA: FloatArray) -> None:
    legal_SA = states.legal_SA
    if policy_SA.shape != legal_SA.shape:
        problem = f"seat {seat} has an array of {policy_SA.shape}, not {legal_SA.shape}"
        raise InputError("policy", problem, "Give a row for each information state")
    wrong_S = ~(np.abs(policy_SA.sum(axis=1) - 1) <= TOLERANCE)
    wrong_S |= ~((policy_SA >= 0) & (legal_SA | (policy_SA == 0))).all(axis=1)
    if wrong_S.any():
        place = int(wrong_S.argmax())
        problem = f"row {place} of seat {seat} is no distribution over legal actions: {policy_SA[place]}"
        raise InputError("policy", problem, "Give probabilities that add up to 1")


def placement_reach(board: HiddenBoard, seat: int, policy_SA: FloatArray) -> FloatArray:
    """Return reach_N: the product of the seat's probabilities on the way to each placement, if the other
    puts down its stones there, summed over the seat's own failed tries."""
    states, placements = board.states[seat], board.placements
    reach_S = np.ones(len(states))
    for level in states.levels[1:]:
        parent = states.parent_S[level]
        reach_S[level] = reach_S[parent] * policy_SA[parent, states.cell_S[level]]
    put_NA = np.zeros(placements.child_NA.shape)
    for cell in range(states.cells):
        weight_S = reach_S * policy_SA[:, cell]
        for pairs in states.pairs:
            put_NA[:, cell] += np.bincount(pairs.placement_P, weight_S[pairs.state_P], len(placements))
    before_N = placements.parent_N
    reach_N = put_NA[before_N, placements.cell_N]
    reach_N[0] = 1.0
    (others,) = np.nonzero(placements.mover_N == seat)
    others = others[others > 0]
    reach_N[others] = reach_N[before_N[others]]
    return reach_N


def best_response(board: HiddenBoard, seat: int, other_reach_N: FloatArray) -> tuple[float, FloatArray]:
    """Return the value of a best response, and action_value_SA: what each action then earns.

    Action values are multiplied by the other's probability of the information state; those of illegal
    actions are -inf. ``other_reach_N`` is the :func:`placement_reach` of the other's policy.
    """
    states, placements = board.states[seat], board.placements
    earned_N = placements.payoff_N * other_reach_N * (1.0, -1.0)[seat]
    after_N = np.bincount(placements.parent_N[1:], earned_N[1:], len(placements))
    # What games earn that end with the seat's next stone or the other's stone after it.
    ends_NA = np.where(placements.child_NA >= 0, (earned_N + after_N)[placements.child_NA], 0.0)
    value_SA = np.zeros((len(states), states.cells))
    for level, pairs in zip(states.levels, states.pairs, strict=True):
        size = level.stop - level.start
        for cell in range(states.cells):
            weight_P = ends_NA[pairs.placement_P, cell]
            value_SA[level, cell] = np.bincount(pairs.state_P - level.start, weight_P, size)
    value_SA[~states.legal_SA] = -np.inf
    for before, level in reversed(list(pairwise(states.levels))):
        place = (states.parent_S[level] - before.start) * states.cells + states.cell_S[level]
        later = np.bincount(place, value_SA[level].max(axis=1), (before.stop - before.start) * states.cells)
        value_SA[before] += later.reshape(-1, states.cells)
    before_first_move = 0.0 if placements.mover_N[0] == seat else after_N[0]
    return float(value_SA[0].max() + before_first_move), value_SA
