"""Policy-space response oracles, whose answer is a mixture of policies.

Each iteration trains a best response to the mixture of the members so far, lets it play all of them, and
solves the payoffs for the next mixture. Source: Lanctot et al., "A Unified Game-Theoretic Approach to
Multiagent Reinforcement Learning", 2017, arXiv 1711.00832.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sparring.config.population import PsroSettings
from sparring.core import SparringError
from sparring.core.confidence_intervals import Interval
from sparring.core.play import MetaStrategy
from sparring.evaluation.tournament import TournamentResult
from sparring.evaluation.tournament_files import read_content, write_content
from sparring.population import PayoffMatrix, PayoffTable
from sparring.population.group_payoffs import GroupPayoffs, constant_total, gain_over_mixture
from sparring.population.meta_strategies import meta_strategy

STATE = "psro.json"
LEAST_GAMES = 4
DIGITS = 4
"""Probabilities are rounded to the accuracy of the solvers, so that no member plays for their noise."""


class Iteration(msgspec.Struct):
    """What an iteration found. The first, number 0, has no best response: its member is where all begins.

    Attributes:
        member: the member that joined, after so many ``updates`` and ``training_games``.
        payoff_games: finished games of payoffs, of all pairs or groups together.
        gain: over the mixture that it was trained against, summed over the seats.
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
    """The content of ``psro.json``. The ``solver`` is that of the last mixture.

    ``payoffs`` with ``standard_error`` and number of ``games`` are those of :class:`GroupPayoffs`, nested
    lists: with two seats, what the row earns against the column, the mean over both seats.
    """

    env_id: str
    solver: MetaStrategy
    members: list[str]
    payoffs: list[Any]
    standard_error: list[Any]
    games: list[Any]
    iterations: list[Iteration]

    @property
    def seats(self) -> int:
        """The number of seats."""
        return np.ndim(self.payoffs)

    @property
    def matrix(self) -> PayoffMatrix:
        """What the row earns in one seat against the column in all others."""
        numbers = (np.array(one) for one in (self.payoffs, self.standard_error, self.games))
        return GroupPayoffs(tuple(self.members), *numbers).matrix


class Response(NamedTuple):
    """The budget that found a best response."""

    updates: int
    training_games: int


def find_equilibrium(
    name: str,
    settings: PsroSettings,
    directory: Path,
    *,
    seats: int,
    respond: Callable[[int, Mapping[str, float]], Response | None],
    play: Callable[[list[str]], TournamentResult],
    measure: Callable[[Mapping[str, float]], tuple[float | None, bool]],
    on_state: Callable[[PsroState], None],
) -> PsroState | None:
    """Run the iterations that ``psro.json`` in the directory does not have.

    What is passed in does the same if it is given again, so that a kill at any time loses nothing.

    Args:
        name: of what is played, in so many ``seats``.
        respond: makes the member with this number, from 1 on, a best response to a mixture of those before
            it; ``None`` interrupts.
        play: lets all groups of these members play, in which a member may have several seats, unless there
            are two whose rewards always have the same sum. Games are not played again.
        measure: the NashConv of a mixture, if it is known, and whether the mixture can be played.
        on_state: called with what is known at the beginning and after each iteration.

    Returns:
        What was found; ``None`` if it was interrupted.

    Raises:
        InputError: ``psro.json`` is damaged.
        SparringError: a pair or group did not finish enough games.
    """
    state = read_state(directory)
    if state is None:
        first = member_name(0)
        iteration = Iteration(first, 0, 0, 0, None, {first: 1.0}, *measure({first: 1.0}))
        solver = first_solver(settings, seats)
        none = np.zeros((1,) * seats)
        nothing = none.tolist(), none.tolist(), none.astype(int).tolist()
        state = PsroState(name, solver, [first], *nothing, [iteration])
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
        table = _played(play, [*state.members, joined])
        payoffs = GroupPayoffs.of(table, [*state.members, joined])
        solver = settings.solver or _default_solver(table)
        mixture, gain = _solved(solver, payoffs), gain_over_mixture(table, joined, before)
        games = sum(payoff.games for _, payoff in table.items())
        iteration = Iteration(joined, *response, games, gain, mixture, *measure(mixture))
        state = msgspec.structs.replace(
            state,
            solver=solver,
            members=[*payoffs.members],
            payoffs=payoffs.mean.tolist(),
            standard_error=payoffs.error.tolist(),
            games=payoffs.games.tolist(),
            iterations=[*state.iterations, iteration],
        )
        write_state(directory, state)


def member_name(number: int) -> str:
    """Return the name of the member that joined in an iteration."""
    return f"member-{number:03d}"


def read_state(directory: Path) -> PsroState | None:
    """Return what a PSRO found so far; ``None`` before the first iteration."""
    return read_content(directory / STATE, PsroState, "Start again under another name")


def write_state(directory: Path, state: PsroState) -> None:
    """Write what was found."""
    write_content(directory / STATE, state)


def _played(play: Callable[[list[str]], TournamentResult], members: list[str]) -> PayoffTable:
    """Return the payoffs; raise a SparringError unless each group finished four games, and each order one."""
    result = play(members)
    games: dict[tuple[str, ...], list[int]] = {}
    for seating, payoff in result.table.items():
        games.setdefault(tuple(sorted(seating)), []).append(payoff.games)
    for group, finished in games.items():
        if sum(finished) < LEAST_GAMES or not all(finished):
            reason = next(iter(result.failures), "")
            raise SparringError(f"{' and '.join(group)} did not finish four games: {reason}")
    return result.table


def first_solver(settings: PsroSettings, seats: int) -> MetaStrategy:
    """Return what solves the mixtures of so many seats before there are payoffs."""
    return settings.solver or ("nash" if seats == 2 else "prd")


def _default_solver(table: PayoffTable) -> MetaStrategy:
    """Return ``nash`` if two seats together earn the same in all games, else ``prd``."""
    return "nash" if table.seats == 2 and constant_total(table) is not None else "prd"


def _solved(solver: MetaStrategy, payoffs: GroupPayoffs) -> dict[str, float]:
    known = payoffs.mean if payoffs.knows_copies else payoffs.matrix.advantage_MM
    solved = meta_strategy(solver, known)
    weights = [round(float(one), DIGITS) for one in solved]
    return {one: weight / sum(weights) for one, weight in zip(payoffs.members, weights, strict=True)}
