"""Policy-space response oracles, whose answer is a mixture of policies.

Each iteration trains a best response to the mixture of the members so far, lets it play all of them, and
solves the payoffs for the next mixture. Source: Lanctot et al., "A Unified Game-Theoretic Approach to
Multiagent Reinforcement Learning", 2017, arXiv 1711.00832.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from sparring.collection.serialization import UNREADABLE
from sparring.config.population import PsroSettings
from sparring.core import InputError, SparringError
from sparring.core.confidence_intervals import Interval
from sparring.core.files import write_file
from sparring.core.manifest import sealed, unsealed
from sparring.evaluation.best_response import gain_over_mixture
from sparring.evaluation.tournament import TournamentResult
from sparring.population import PayoffMatrix
from sparring.population.meta_strategies import meta_strategy

STATE = "psro.json"
DIGITS = 4
"""Probabilities are rounded to the accuracy of the solvers, so that no member plays for their noise."""


class Iteration(msgspec.Struct):
    """What an iteration found. The first, number 0, has no best response: its member is where all begins.

    Attributes:
        member: the member that joined, after so many ``updates`` and ``training_games``.
        payoff_games: finished games in the payoff matrix, of all pairs together.
        gain: over the mixture that it was trained against, summed over both seats.
        mixture: the probability of each member, solved with the new one.
        nash_conv: NashConv of the new mixture; ``None`` if it is not asked for.
        is_playable: whether the mixture gives legal answers often enough for ``nash_conv`` to say anything.
    """

    member: str
    updates: int
    training_games: int
    payoff_games: int
    gain: Interval | None
    mixture: dict[str, float]
    nash_conv: float | None
    is_playable: bool = True


class PsroState(msgspec.Struct):
    """The content of ``psro.json``. Matrices have a row and a column for each member, in order.

    ``payoffs`` are what the row earns against the column, the mean over both seats, of so many ``games``.
    """

    env_id: str
    solver: str
    members: list[str]
    payoffs: list[list[float]]
    standard_error: list[list[float]]
    games: list[list[int]]
    iterations: list[Iteration]

    @property
    def matrix(self) -> PayoffMatrix:
        """The payoffs."""
        numbers = (np.array(one) for one in (self.payoffs, self.standard_error, self.games))
        return PayoffMatrix(tuple(self.members), *numbers)


class Response(NamedTuple):
    """The budget that found a best response."""

    updates: int
    training_games: int


def find_equilibrium(
    name: str,
    settings: PsroSettings,
    directory: Path,
    *,
    respond: Callable[[int, Mapping[str, float]], Response | None],
    play: Callable[[list[str]], TournamentResult],
    measure: Callable[[Mapping[str, float]], tuple[float | None, bool]],
    on_state: Callable[[PsroState], None],
) -> PsroState | None:
    """Run the iterations that ``psro.json`` in the directory does not have, in a venue with two seats.

    What is passed in does the same if it is given again, so that a kill at any time loses nothing.

    Args:
        name: of what is played.
        respond: makes the member with this number, from 1 on, a best response to a mixture of those before
            it; ``None`` interrupts.
        play: lets all pairs of these members play; games that were played before are not played again.
        measure: the NashConv of a mixture, if it is known, and whether the mixture can be played.
        on_state: called with what is known at the beginning and after each iteration.

    Returns:
        What was found; ``None`` if it was interrupted.

    Raises:
        InputError: ``psro.json`` is damaged.
        SparringError: a pair did not finish enough games.
    """
    state = read_state(directory)
    if state is None:
        first = member_name(0)
        iteration = Iteration(first, 0, 0, 0, None, {first: 1.0}, *measure({first: 1.0}))
        state = PsroState(name, settings.solver, [first], [[0.0]], [[0.0]], [[0]], [iteration])
        directory.mkdir(parents=True, exist_ok=True)
        write_state(directory, state)
    while True:
        on_state(state)
        number, before = len(state.iterations), state.iterations[-1].mixture
        if number > settings.iterations:
            return state
        response = respond(number, before)
        if response is None:
            return None
        joined = member_name(number)
        matrix = _payoffs(play, [*state.members, joined])
        mixture = _solved(settings, matrix)
        games, gain = int(matrix.games_MM.sum()) // 2, gain_over_mixture(matrix, joined, before)
        iteration = Iteration(joined, *response, games, gain, mixture, *measure(mixture))
        state = msgspec.structs.replace(
            state,
            members=[*matrix.members],
            payoffs=matrix.mean_MM.tolist(),
            standard_error=matrix.error_MM.tolist(),
            games=matrix.games_MM.tolist(),
            iterations=[*state.iterations, iteration],
        )
        write_state(directory, state)


def member_name(number: int) -> str:
    """Return the name of the member that joined in an iteration."""
    return f"member-{number:03d}"


def read_state(directory: Path) -> PsroState | None:
    """Return what a PSRO found so far; ``None`` before the first iteration."""
    file = directory / STATE
    if not file.is_file():
        return None
    try:
        return msgspec.convert(unsealed(file.read_bytes()), PsroState)
    except (OSError, *UNREADABLE) as error:
        raise InputError(str(file), f"is damaged: {error}", "Start again under another name") from error


def write_state(directory: Path, state: PsroState) -> None:
    """Write what was found."""
    write_file(directory / STATE, sealed(msgspec.to_builtins(state)))


def _payoffs(play: Callable[[list[str]], TournamentResult], members: list[str]) -> PayoffMatrix:
    result = play(members)
    for pair in combinations(members, 2):
        if min(result.table.payoff(*seats).games for seats in (pair, pair[::-1])) < 2:
            reason = next(iter(result.failures), "")
            raise SparringError(f"{' and '.join(pair)} did not finish four games: {reason}")
    return result.table.matrix(members)


def _solved(settings: PsroSettings, matrix: PayoffMatrix) -> dict[str, float]:
    solved = meta_strategy(settings.solver, matrix.advantage_MM)
    weights = [round(float(one), DIGITS) for one in solved]
    return {one: weight / sum(weights) for one, weight in zip(matrix.members, weights, strict=True)}
