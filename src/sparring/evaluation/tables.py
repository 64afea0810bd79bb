"""Evaluations as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparring.core.confidence_intervals import Interval
from sparring.core.text import one_line, printable
from sparring.evaluation.best_response import Exploited
from sparring.evaluation.figures import Figure
from sparring.evaluation.kept_value import KeptValue
from sparring.evaluation.match_result import MatchResult, failures_text
from sparring.evaluation.measures import MeasureResult
from sparring.evaluation.nash_conv import UNPLAYABLE_NOTE, NashConvResult
from sparring.evaluation.result_files import EvaluationResult

NOTHING = "-"
UNPLAYABLE = f"(!) {UNPLAYABLE_NOTE}"


def match_table(results: Sequence[MatchResult], kept: KeptValue | None = None) -> Group:
    """Return a table with a column for each match: win, draw, loss, invalid moves and the mean reward.

    Notes below it name what the counts leave out: failed games with their reasons, and rounding. ``kept`` is
    how often the moves of a single match kept the value of the position.
    """
    table = Table()
    table.add_column("", no_wrap=True)
    columns = [_cells(result) for result in results]
    for result in results:
        table.add_column(Text(one_line(_title(result))), justify="right", overflow="fold")
    for name in columns[0] if columns else ():
        table.add_row(name, *(column[name] for column in columns))
    if kept is not None:
        table.add_section()
        for name, text in _cells_of_kept(kept).items():
            table.add_row(name, text)
    return Group(table, _notes(results))


def exact_table(result: NashConvResult) -> Group:
    """Return a table of an exact measure, with a note if the policy cannot be played."""
    table = Table()
    table.add_column("", no_wrap=True)
    table.add_column(Text(one_line(_title(result))), justify="right", overflow="fold")
    for name, text in _cells(result).items():
        table.add_row(name, text)
    return Group(table, *([Text(UNPLAYABLE)] if _is_unplayable(result) else []))


def comparison_table(before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]) -> Group:
    """Return a table of the evaluations before and after, side by side.

    Matches in the same environment against the same opponent share a section, and so do exact measures of the
    same environment; if there are several, the last one counts. A value that is missing on one side is shown
    as a dash.
    """
    table = Table()
    table.add_column("", overflow="fold")
    table.add_column("Before", justify="right", no_wrap=True)
    table.add_column("After", justify="right", no_wrap=True)
    firsts = {_title(result): result for result in before}
    lasts = {_title(result): result for result in after}
    for title in dict.fromkeys([*firsts, *lasts]):
        first = _cells(firsts.get(title))
        last = _cells(lasts.get(title))
        table.add_section()
        table.add_row(Text(one_line(title), style="bold"), "", "")
        for name in first or last:
            table.add_row(f"  {name}", first.get(name, NOTHING), last.get(name, NOTHING))
    unplayable = [result for result in (*firsts.values(), *lasts.values()) if _is_unplayable(result)]
    return Group(table, _notes(_matches([*before, *after])), *([Text(UNPLAYABLE)] if unplayable else []))


def measures_table(measures: Mapping[str, MeasureResult]) -> Table:
    """Return a line for each measure of a program."""
    table = Table("measure", "items", "mean, 95% interval", box=None, pad_edge=False)
    for measure, result in measures.items():
        table.add_row(Text(printable(measure)), str(len(result.values)), share_or_mean_text(result))
    return table


def exploited_table(result: Exploited) -> Group:
    """Return the gains as a table with notes: what they are, the budget, and the exact measure beside."""
    exact = None if result.exact is None else result.exact.played_gains or result.exact.exploitability
    table = Table(title=Text(one_line(f"{result.model} in {result.env_id}")))
    for name in ("Seat", "Games", "Policy", "Best response", "Gain", *(["Exact"] if exact else [])):
        table.add_column(name, justify="right")
    for seat, one in enumerate(result.seats):
        texts = [str(seat), f"{one.games:,}", _gain_text(one.value), _gain_text(one.best_response_value)]
        table.add_row(*texts, _gain_text(one.gain), *([f"{exact[seat]:.4f}"] if exact else []))
    table.add_section()
    table.add_row("Sum", "", "", "", _gain_text(result.total), *([f"{sum(exact):.4f}"] if exact else []))
    return Group(table, Text("\n".join(_notes_on_gains(result))))


def share_text(share: Interval, trials: int) -> str:
    """Return a share and its interval in percent, or a dash without trials."""
    if trials == 0:
        return NOTHING
    return f"{100 * share.mid:.1f}% ({100 * share.low:.1f} to {100 * share.high:.1f})"


def mean_text(number: Interval, count: int) -> str:
    """Return a mean and its interval, or a dash without values."""
    if count == 0:
        return NOTHING
    return f"{number.mid:+.2f} ({number.low:+.2f} to {number.high:+.2f})"


def figure_text(figure: Figure) -> str:
    """Return a figure and its interval; an exact one has none, and is marked if it cannot be played."""
    if figure.kind == "share":
        return share_text(figure.interval, figure.count)
    if figure.kind == "mean":
        return mean_text(figure.interval, figure.count)
    return nash_conv_text(figure.value, figure.is_playable)


def nash_conv_text(value: float | None, is_playable: bool) -> str:
    """Return a NashConv, marked if its policy cannot be played, or a dash if it is not known."""
    return NOTHING if value is None else f"{value:.4f}{'' if is_playable else ' (!)'}"


def share_or_mean_text(result: MeasureResult) -> str:
    """Return a measure and its interval."""
    text = share_text if result.is_share else mean_text
    return text(result.interval, len(result.values))


def _title(result: EvaluationResult) -> str:
    if isinstance(result, MeasureResult):
        return result.name
    if isinstance(result, NashConvResult):
        return f"{result.env_id}, exact"
    return f"{result.env_id} against {result.opponent}" if result.opponent else result.env_id


def _cells(result: EvaluationResult | None) -> dict[str, str]:
    """Return the values of one side by row name."""
    if result is None:
        return {}
    if isinstance(result, NashConvResult):
        return {
            "NashConv, 0 is best": nash_conv_text(result.nash_conv, result.is_playable),
            "Mass on legal moves": f"{100 * result.legal_mass:.2f}%",
        }
    if isinstance(result, MeasureResult):
        return {"Items": f"{len(result.values):,}", "Mean": share_or_mean_text(result)}
    return {
        "Games": f"{result.games:,}",
        "Win": share_text(result.win_rate, result.games),
        "Draw": share_text(result.draw_rate, result.games),
        "Loss": share_text(result.loss_rate, result.games),
        "Ended by its invalid move": share_text(result.invalid_game_rate, result.games),
        "Invalid share of moves": share_text(result.invalid_move_rate, result.moves),
        "Mean reward": mean_text(result.mean_reward, result.games),
    }


def _cells_of_kept(kept: KeptValue) -> dict[str, str]:
    """Return the shares of moves that kept the value, and of how many, by row name."""
    return {
        "Positions met by the model": f"{kept.positions:,} ({kept.distinct:,} different)",
        "Moves that keep their value": share_text(kept.share, kept.positions),
        "Positions where a move can lose it": f"{kept.tested:,}",
        "Moves there that keep it": share_text(kept.tested_share, kept.tested),
    }


def _is_unplayable(result: EvaluationResult) -> bool:
    return isinstance(result, NashConvResult) and not result.is_playable


def _matches(results: Sequence[EvaluationResult]) -> list[MatchResult]:
    return [result for result in results if isinstance(result, MatchResult)]


def _notes(results: Sequence[MatchResult]) -> Text:
    """Return notes on what the counts of matches leave out, one line for each affected match."""
    lines = ["In parentheses: 95% intervals."] if results else []
    for result in results:
        if result.failed:
            reasons = failures_text(result.failure_reasons)
            lines.append(f"{_title(result)}: {result.failed} games failed and are not counted: {reasons}")
        if result.scheduled_games != result.requested_games:
            lines.append(
                f"{_title(result)}: {result.requested_games} games were rounded up to "
                f"{result.scheduled_games} to balance the seats."
            )
    return Text("\n".join(map(one_line, lines)))


def _notes_on_gains(result: Exploited) -> list[str]:
    settled = f" of {result.max_updates}, then it settled" if result.settled else ""
    none = "" if result.found else "The sum of the gains is not above 0 beyond chance: no gain found. "
    if result.total.low > 0 and not result.found:
        none = f"{result.rounds} rounds are too few to trust the interval of the sum: no gain found. "
    lines = [
        f"{none}Gains are estimates, with 95% intervals, of what this response gains; the expectation of "
        "their sum is a lower bound of what the best of all responses would gain.",
        f"Budget of the best response: {result.updates} updates{settled}, {result.training_games:,} games, "
        f"{result.minutes:.1f} minutes.",
    ]
    if not result.settled:
        lines.append("It had not settled: the same command with more --updates goes on, and may find more.")
    if result.failures:
        failed = sum(result.failures.values())
        lines.append(f"{failed} games failed and are not counted: {failures_text(result.failures)}")
    if result.exact is not None:
        lines.append(_note_on_exact(result.exact))
    return lines


def _note_on_exact(exact: NashConvResult) -> str:
    legal = f"legal answers only, which have {100 * exact.legal_mass:.1f}% of the probability"
    if exact.played_gains is None:
        return f"Exact is for the {legal}. In the games, invalid moves lose."
    counted = "Exact counts invalid moves as the games do: they lose."
    return f"{counted} NashConv is {exact.nash_conv:.4f}, for the {legal}."


def _gain_text(number: Interval) -> str:
    return f"{number.mid:+.3f} ± {number.high - number.mid:.3f}"
