"""Evaluations and what best responses gain as tables."""

from collections.abc import Iterator, Sequence

from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted
from sparring.evaluation.best_response import Exploited, SeatGain
from sparring.evaluation.figures import NO_INTERVAL, Figure, are_legal_but_invalid, figures_of
from sparring.evaluation.kept_value import KeptValue
from sparring.evaluation.results import (
    THOUGHT_NOTE,
    UNPLAYABLE_NOTE,
    EvaluationResult,
    MatchResult,
    NashConvResult,
    failures_text,
)
from sparring.evaluation.task_result import TaskResult
from sparring.view.tables import Row, Table, figure_cell


def results_table(results: Sequence[EvaluationResult], kept: KeptValue | None = None) -> Table:
    """Return the figures of evaluations, and how often a match's moves kept the value of the position."""
    groups: list[tuple[str, str, list[Row]]] = []
    for result in results:
        figures = figures_of(result)
        drawn = next((one.drawn for one in figures), "")
        groups.append((_title(result), drawn, [*map(_figure_row, figures)]))
    if kept is not None:
        groups.append(("Beside perfect play", "", _kept_rows(kept)))
    return Table(("", "", ""), groups, [*_notes(results)])


def exploited_table(result: Exploited) -> Table:
    """Return the gains by seat, with notes: what they are, the budget, and the exact measure beside.

    They come first, so that a narrow screen shows them.
    """
    exact = result.exact_gains
    rows: list[Row] = []
    for seat, one in enumerate(result.seats):
        gain, *values = map(gain_text, (one.gain, one.value, one.best_response_value))
        of_seat = [f"{exact[seat]:.4f}"] if exact else []
        rows.append([one.seat, gain, *of_seat, *values, f"{one.games:,}"])
    total = [f"{sum(exact):.4f}"] if exact else []
    rows.append(["sum", gain_text(result.total), *total, "", "", ""])
    who = ("Seat", "Policy", "Best response") if result.role is None else ("Role", "Untrained", "Trained")
    heads = (who[0], "Gain", *(["Exact"] if exact else []), *who[1:], "Games")
    return Table(heads, [(title_of(result), "", rows)], [*_notes_on_gains(result)])


def budget_text(result: Exploited) -> str:
    """Return in what the response learned: updates of a model, or positions of a table."""
    if result.positions is not None:
        return f"a table of {counted(result.positions, 'position')}"
    return counted(result.updates or 0, "update")


def title_of(result: Exploited) -> str:
    """Return who was answered, and where."""
    return f"{result.model}{f' as {result.role}' if result.role else ''} in {result.env_id}"


def _title(result: EvaluationResult) -> str:
    if isinstance(result, TaskResult):
        return result.task
    if isinstance(result, MatchResult):
        return f"{result.env_id} against {result.opponent}" if result.opponent else result.env_id
    return f"{result.env_id}, exact" if isinstance(result, NashConvResult) else ""


def _figure_row(figure: Figure) -> Row:
    name = figure.name.measure
    title = f"{name[:1].upper()}{name[1:]}" if figure.name.env_id else name
    value = figure_cell(figure.interval, figure.kind, exactly=True, is_playable=figure.is_playable)
    return [title, value, counted(figure.count, figure.counted.removesuffix("s")) if figure.count else ""]


def _kept_rows(kept: KeptValue) -> list[Row]:
    met, tested = counted(kept.positions, "position"), counted(kept.tested, "position")
    return [
        [
            "Moves that keep their value",
            figure_cell(kept.share, "share"),
            f"{met}, {kept.distinct:,} different",
        ],
        ["Where a move can lose it", figure_cell(kept.tested_share, "share") if kept.tested else "-", tested],
    ]


def _notes(results: Sequence[EvaluationResult]) -> Iterator[str]:
    """Yield what the intervals are, and what the counts of matches leave out."""
    yield "Beside a value: its 95% interval."
    if are_legal_but_invalid({one.name: one.value for result in results for one in figures_of(result)}):
        yield THOUGHT_NOTE
    for result in results:
        if isinstance(result, NashConvResult) and not result.is_playable:
            yield UNPLAYABLE_NOTE
        if isinstance(result, MatchResult) and result.failed:
            reasons = failures_text(result.failure_reasons)
            yield f"{counted(result.failed, 'game')} failed and did not count: {reasons}"
        if isinstance(result, MatchResult) and result.scheduled_games != result.requested_games:
            rounded = f"from {result.requested_games} to {result.scheduled_games}"
            yield f"The games were rounded up {rounded} to balance the seats."


def _notes_on_gains(result: Exploited) -> Iterator[str]:
    if result.role is not None:
        yield (
            f"{result.model} has the role {result.role} and learns nothing. Gain: what a role earns more "
            "after it has learned against it than untrained, while the other roles are untrained."
        )
    none = "" if result.found else "The sum of the gains is not above 0 beyond chance: no gain found. "
    if result.total.low > 0 and not result.found:
        rounds = counted(result.rounds, "round")
        none = f"After {rounds}, the interval of the sum cannot be trusted: no gain found. "
    yield (
        f"{none}Gains are estimates, with 95% intervals, of what this response gains; the expectation of "
        "their sum is a lower bound of what the best of all responses would gain."
    )
    settled = f" of {result.max_updates}, then it settled" if result.settled and result.max_updates else ""
    yield (
        f"Budget of the best response: {budget_text(result)}{settled}, "
        f"{counted(result.training_games, 'game')}, {result.minutes:.1f} minutes."
    )
    if not result.settled:
        yield "It had not settled: the same command with more --updates goes on, and may find more."
    if result.calls is not None:
        yield f"Calls to models behind an API: {result.calls:,} of {result.max_calls:,}."
    if result.rounds < result.planned_rounds and result.calls == result.max_calls is not None:
        planned = f"{result.rounds:,} of {result.planned_rounds:,} rounds"
        yield f"The calls were used up: {planned} were played. With more --calls, it goes on."
    if any(one.invalid_own or one.invalid_others or one.invalid_response for one in result.seats):
        yield from map(_invalid_text, result.seats)
    if result.failures:
        failed = sum(result.failures.values())
        yield f"{counted(failed, 'game')} failed and did not count: {failures_text(result.failures)}"
    if result.exact is not None and result.exact.legal_mass < 1:
        legal = f"legal answers only, which have {100 * result.exact.legal_mass:.1f}% of the probability"
        if result.exact.played_gains is None:
            yield f"Exact is for the {legal}. In the games, invalid moves lose."
        else:
            exact = f"NashConv is {result.exact.nash_conv:.4f}, for the {legal}"
            yield f"Exact counts invalid moves as the games do: they lose. {exact}."


def _invalid_text(seat: SeatGain) -> str:
    """Return how many games invalid moves ended, beside the gain of a seat."""
    return (
        f"Invalid moves, {seat.title}: the policy's own ended {seat.invalid_own:.1%} of its games; "
        f"against the response, the policy's {seat.invalid_others:.1%} and the response's "
        f"{seat.invalid_response:.1%}."
    )


def gain_text(number: Interval) -> str:
    """Return a gain with half of its interval."""
    spread = f"± {number.high - number.mid:.3f}" if number.high > number.mid else f"({NO_INTERVAL})"
    return f"{number.mid:+.3f} {spread}"
