"""Optimal play of small OpenSpiel games: minimax, or an equilibrium by CFR+."""

from functools import lru_cache
from typing import Any, Protocol

import pyspiel

from sparring.core import InputError
from sparring.envs.openspiel_game import (
    InformationState,
    game_at,
    information_states,
    is_constant_sum,
    load_game,
)

MAX_POSITIONS = 200_000
MAX_INFORMATION_STATES = 5000
"""CFR+ visits every position in each of its iterations."""
MAX_POSITIONS_OF_CFR = 50_000
MAX_GAME_LENGTH = 200
_CFR_ITERATIONS = 5000
_CFR_CHECK_EVERY = 50
_NASH_CONV_GOAL = 0.002  # as a fraction of the range of the game's utilities


class Solution(Protocol):
    """A strategy for a game; ``state`` is a ``pyspiel.State`` at which a player decides."""

    def policy(self, state: Any) -> dict[int, float]:
        """Return the probability of each action that an optimal player may take at ``state``."""


class Minimax:
    """Exact play of a two-player zero-sum game of perfect information without chance, uniform among equally
    good moves.

    A search that needs more than 200,000 positions raises an InputError.
    """

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._values: dict[tuple[str, int], float] = {}

    def policy(self, state: Any) -> dict[int, float]:
        sign = 1 if state.current_player() == 0 else -1
        values = {action: sign * self._value(state.child(action)) for action in state.legal_actions()}
        best = max(values.values())
        optimal = [action for action, value in values.items() if value == best]
        return dict.fromkeys(optimal, 1 / len(optimal))

    def _value(self, state: Any) -> float:
        """Return the value of ``state`` for player 0 if both players play optimally."""
        if state.is_terminal():
            return float(state.player_return(0))
        key = (str(state), state.current_player())
        if key not in self._values:
            if len(self._values) >= MAX_POSITIONS:
                raise _no_optimal_player(self._env_id, "it has too many positions")
            values = [self._value(state.child(action)) for action in state.legal_actions()]
            self._values[key] = max(values) if state.current_player() == 0 else min(values)
        return self._values[key]


class Equilibrium:
    """An equilibrium of a two-player zero-sum game by CFR+ (Tammelin 2014, arXiv 1407.5042).

    CFR+ runs until NashConv is below 0.2% of the range of utilities, or for 5,000 iterations.
    """

    def __init__(self, env_id: str) -> None:
        decisions = _decisions(env_id)
        game = load_game(env_id)
        solver = pyspiel.CFRPlusSolver(game)
        goal = _NASH_CONV_GOAL * (game.max_utility() - game.min_utility())
        for iteration in range(1, _CFR_ITERATIONS + 1):
            solver.evaluate_and_update_policy()
            enough = iteration % _CFR_CHECK_EVERY == 0
            if enough and pyspiel.nash_conv(game, solver.average_policy()) < goal:
                break
        # The solver's policy is a view into the solver and must not outlive it: copy it out.
        average = solver.average_policy()
        self._table = {
            decision.info_state: dict(average.action_probabilities(game_at(env_id, decision.history).state))
            for decision in decisions
        }

    def policy(self, state: Any) -> dict[int, float]:
        return self._table[state.information_state_string()]


@lru_cache(maxsize=16)
def solve(env_id: str) -> Solution:
    """Return optimal play of an OpenSpiel game, which is solved once per process."""
    check_solvable(env_id)
    return Minimax(env_id) if _is_open(load_game(env_id)) else Equilibrium(env_id)


def check_solvable(env_id: str) -> None:
    """Raise the errors of ``solve`` that can be found without solving, in well under a second."""
    game = load_game(env_id)
    if game.num_players() != 2 or not is_constant_sum(env_id):
        raise _no_optimal_player(env_id, "it is not a two-player zero-sum game")
    if not _is_open(game):
        _decisions(env_id)
    elif game.max_game_length() > MAX_GAME_LENGTH:
        raise _no_optimal_player(env_id, "its games can be too long")


def _decisions(env_id: str) -> list[InformationState]:
    return information_states(env_id, MAX_INFORMATION_STATES, MAX_POSITIONS_OF_CFR)


def _is_open(game: Any) -> bool:
    kind = game.get_type()
    perfect = kind.information == kind.Information.PERFECT_INFORMATION
    return bool(perfect and kind.chance_mode == kind.ChanceMode.DETERMINISTIC)


def _no_optimal_player(env_id: str, reason: str) -> InputError:
    return InputError("opponent", f"no optimal player for {env_id}: {reason}", "Use random as the opponent")
