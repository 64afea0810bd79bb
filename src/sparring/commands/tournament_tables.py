"""The tables of ``sparring tournament`` in the terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sparring.core.confidence_intervals import NORMAL_95, Interval
from sparring.core.text import one_line
from sparring.population.meta_strategies import RESAMPLES, ResampledShare
from sparring.population.payoffs import PayoffMatrix
from sparring.population.rankings import Cycle, MemberRank, Rankings

NOTHING = "-"
INTERVALS = "After ±: 95% intervals; of TrueSkill, two standard deviations."
MANY_PLAYERS = (
    "Bradley-Terry, Nash averaging, α-rank, dominated members and cycles are left out: they are defined by "
    "games of two."
)
NOT_ZERO_SUM = (
    "The game is not zero-sum: for Nash and α-rank, a payoff is half of what the row earns more than the "
    "column."
)
RESAMPLED_RANGE = (
    f"resampled range, in which the shares of 95% of {RESAMPLES} resampled matrices lie; "
    "it is not a confidence interval"
)
WINS = "Bradley-Terry and TrueSkill count wins, not rewards."
NO_CYCLE = "No cycle was found: the pairs that differ beyond noise can be put in one order."
_NAME_WIDTH = 24
_ANY_WIDTH = 10_000


class Column(NamedTuple):
    """A column of the ranking: its head, a member's text, and whether only games for two have it."""

    head: str
    text: Callable[[MemberRank], str]
    of_pairs: bool = False


def print_tournament(rankings: Rankings, failures: Mapping[str, int], console: Console) -> None:
    """Print the matrix, if the terminal is wide enough for it, the ranking, and what it leaves out."""
    if rankings.matrix is not None:
        _print_matrix(rankings, rankings.matrix, console)
    console.print(_ranking_table(rankings))
    console.print()
    for line in [*notes(rankings), *failure_lines(failures)]:
        console.print(Text(one_line(line)))


def notes(rankings: Rankings) -> list[str]:
    """Return sentences on intervals and ranges, the dominated members and the cycles."""
    if rankings.matrix is None:
        return [INTERVALS, MANY_PLAYERS]
    lines = [
        INTERVALS,
        WINS,
        f"In parentheses, of Nash and α-rank: the {RESAMPLED_RANGE}.",
    ]
    if not rankings.matrix.is_zero_sum:
        lines.append(NOT_ZERO_SUM)
    below: dict[str, list[str]] = {}
    for one in rankings.members:
        if one.dominated_by is not None:
            below.setdefault(one.dominated_by, []).append(one.uid)
    for better, dominated in below.items():
        lines.append(
            f"† dominated by {better}, which is nowhere worse, and somewhere better beyond noise: "
            f"{', '.join(dominated)}."
        )
    none = [] if below else ["No member is dominated."]
    return [*lines, *none, *([cycle_text(cycle) for cycle in rankings.cycles] or [NO_CYCLE])]


def cycle_text(cycle: Cycle) -> str:
    """Return a cycle in words."""
    around = " beats ".join((*cycle.shortest, cycle.shortest[0]))
    if len(cycle.group) == len(cycle.shortest):
        return f"A cycle: {around}."
    return (
        f"A cycle: {around}. It is the shortest of a group of {len(cycle.group)}: {', '.join(cycle.group)}."
    )


def failure_lines(failures: Mapping[str, int]) -> list[str]:
    """Return a line for each reason why games failed, the most frequent first."""
    most_first = sorted(failures.items(), key=lambda item: -item[1])
    return [f"{count} games failed and are not counted: {reason}" for reason, count in most_first]


def score_text(score: Interval | None, form: str = "+z.2f") -> str:
    """Return a mean with half of its interval, which is left out where it is not known."""
    if score is None:
        return NOTHING
    spread = (score.high - score.low) / 2
    return f"{score.mid:{form}}" + (f" ±{spread:{form.lstrip('+z')}}" if math.isfinite(spread) else "")


def share_text(share: ResampledShare | None, unit: str = "%") -> str:
    """Return a share in percent, with its resampled range where that is not the share alone."""
    if share is None:
        return NOTHING
    mid, low, high = (f"{100 * value:.0f}" for value in share)
    return f"{mid}{unit}" + (f" ({low}-{high})" if low != high else "")


def invalid_text(member: MemberRank) -> str:
    """Return the share of a member's games that its own invalid moves ended."""
    return f"{member.invalid / member.games:.1%}" if member.games else NOTHING


def rating_text(member: MemberRank) -> str:
    """Return a TrueSkill rating and two of its standard deviations."""
    mu, sigma = member.trueskill
    return f"{mu:.1f} ±{2 * sigma:.1f}"


def _print_matrix(rankings: Rankings, matrix: PayoffMatrix, console: Console) -> None:
    """Print the matrix, with intervals if they fit the terminal, or say that it does not fit."""
    tables = [_matrix_table(rankings, matrix, intervals=intervals) for intervals in (True, False)]
    options = console.options.update_width(_ANY_WIDTH)
    fitting = [one for one in tables if Measurement.get(console, options, one).maximum <= console.width]
    note = f"The matrix of {len(matrix.members)} members is wider than this terminal; it is on the page."
    console.print(fitting[0] if fitting else Text(note))
    console.print()


def _matrix_table(rankings: Rankings, matrix: PayoffMatrix, *, intervals: bool) -> Table:
    """Return the mean reward of each row against each column, best member first.

    A mean whose interval is above 0 is green, and one whose interval is below 0 is red.
    """
    place = {uid: row for row, uid in enumerate(matrix.members)}
    order = [place[one.uid] for one in rankings.members]
    table = Table(box=None, pad_edge=False)
    table.add_column("Mean reward\nof the row", max_width=_NAME_WIDTH, no_wrap=True)
    for number in range(1, len(order) + 1):
        table.add_column(
            f"against\n{number}" if number == 1 else f"\n{number}", justify="right", no_wrap=True
        )
    for number, row in enumerate(order, start=1):
        cells = [
            Text(NOTHING)
            if row == column
            else _cell(matrix.mean_MM[row, column], NORMAL_95 * matrix.error_MM[row, column], intervals)
            for column in order
        ]
        table.add_row(Text(f"{number} {one_line(matrix.members[row])}"), *cells)
    return table


def _cell(mean: float, spread: float, interval: bool) -> Text:
    if math.isnan(mean):
        return Text("?")
    style = "green" if mean > spread else "red" if mean < -spread else ""
    text = score_text(Interval(mean - spread, mean, mean + spread)) if interval else f"{mean:+z.2f}"
    return Text(text, style=style)


def shown(columns: Sequence[Column], rankings: Rankings) -> list[Column]:
    """Return the columns that the game has, and NashConv if it was computed."""
    found = [one for one in columns if rankings.matrix is not None or not one.of_pairs]
    return [*found, NASH_CONV] if has_nash_conv(rankings) else found


def has_nash_conv(rankings: Rankings) -> bool:
    """Return whether the NashConv of a member is known."""
    return any(one.nash_conv is not None for one in rankings.members)


NASH_CONV = Column("NashConv", lambda one: NOTHING if one.nash_conv is None else f"{one.nash_conv:.3f}")


_COLUMNS = (
    Column("Mean\nreward", lambda one: score_text(one.score)),
    Column("Bradley-\nTerry", lambda one: score_text(one.bradley_terry, ".0f"), of_pairs=True),
    Column("TrueSkill", rating_text),
    Column("Nash, %", lambda one: share_text(one.nash, ""), of_pairs=True),
    Column("α-rank, %", lambda one: share_text(one.alpharank, ""), of_pairs=True),
    Column("Invalid", invalid_text),
)


def _ranking_table(rankings: Rankings) -> Table:
    columns = shown(_COLUMNS, rankings)
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for number, one in enumerate(rankings.members, start=1):
        mark = " †" if one.dominated_by is not None else ""
        name = Text(f"{number} {one_line(one.uid)}{mark}")
        table.add_row(name, *(column.text(one) for column in columns))
    return table
