"""A tournament in the terminal and as one HTML page: the ranking, who beats whom, and games to read."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from sparring.core.confidence_intervals import NORMAL_95, Interval
from sparring.core.env_id import env_name
from sparring.core.text import counted, one_line
from sparring.population import PayoffTable
from sparring.population.meta_strategies import RESAMPLES, ResampledShare
from sparring.population.payoffs import PayoffMatrix
from sparring.population.rankings import Cycle, MemberRank, Rankings
from sparring.view.cards import Card, card_of
from sparring.view.episodes import first_episodes
from sparring.view.report.cards import Shared, cards_html
from sparring.view.report.html import Page
from sparring.view.report.plotly import PlotlyFigure, heat_cells, heat_layout, heat_trace, members_figure
from sparring.view.tables import Row, Table
from sparring.view.watch.text import table_text

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
ANCHORED = (
    "Its members' ratings are fixed, random's at 1000; a reward counts as the share of the game's range that "
    "it is."
)
INVALID = "Invalid: games that its own invalid moves ended."
NO_CYCLE = "No cycle was found: the pairs that differ beyond noise can be put in one order."
_NAME_WIDTH = 24
_ANY_WIDTH = 10_000
_NUMBERS_IN_CELLS = 14
"""Up to this many members, the cells of a heat map show their numbers."""


def print_tournament(rankings: Rankings, failures: Mapping[str, int], console: Console) -> None:
    """Print the matrix, if the terminal is wide enough for it, the ranking, and what it leaves out."""
    if rankings.matrix is not None:
        _print_matrix(rankings, rankings.matrix, console)
    console.print(table_text(_ranking(rankings, briefly=True)))
    console.print()
    console.print(table_text(_by_seat(rankings)))
    most_first = sorted(failures.items(), key=lambda item: -item[1])
    for reason, count in most_first:
        console.print(Text(one_line(f"{counted(count, 'game')} failed and did not count: {reason}")))


def tournament_html(
    env_id: str, seed: int, table: PayoffTable, rankings: Rankings, samples: Mapping[str, Sequence[Path]]
) -> str:
    """Return the whole page. All text is escaped, and the page's policy allows only its own scripts.

    ``samples`` are the logs of games to read, of which some may be missing, by the pair's or group's name.
    """
    members, matrix = counted(len(rankings.members), "member"), rankings.matrix
    who = "every pair in both seats" if matrix is not None else "every group in every order of seats"
    page = Page(f"Tournament of {env_name(env_id)}", escape(f"{members}, {who}, seed {seed}"))
    page.tiles(_tiles(table, rankings))
    page.table("Ranking", _ranking(rankings))
    page.table("By role" if _have_roles(rankings) else "By seat", _by_seat(rankings))
    if matrix is not None:
        place = {uid: row for row, uid in enumerate(matrix.members)}
        order = [place[one.uid] for one in rankings.members]
        caption = "Mean reward of the row against the column over both seats, best member first."
        page.charts("Who beats whom", [payoff_map(matrix, order, caption)])
    page.charts("Rankings side by side", [*_figures(rankings)])
    seats = [f"seat {seat}" for seat in range(table.seats)]
    note = f"The first deal of every {'pair, in both' if len(seats) == 2 else 'group, in two'} seat orders."
    page.section("Games", cards_html(_games(samples), Shared(seats, of_evaluation=True)), note)
    return page.html()


def score_text(score: Interval | None, form: str = "+z.2f") -> str:
    """Return a mean with half of its interval, which is left out where it is not known: games that all
    paid the same do not say how far others would spread."""
    if score is None:
        return NOTHING
    spread = (score.high - score.low) / 2
    return f"{score.mid:{form}}" + (f" ±{spread:{form.lstrip('+z')}}" if 0 < spread < math.inf else "")


def _share_text(share: ResampledShare | None) -> str:
    """Return a share in percent, with its resampled range where that is not the share alone."""
    if share is None:
        return NOTHING
    mid, low, high = (f"{100 * value:.0f}" for value in share)
    return mid + (f" ({low}-{high})" if low != high else "")


def _trueskill(one: MemberRank) -> Interval:
    mu, sigma = one.trueskill
    return Interval(mu - 2 * sigma, mu, mu + 2 * sigma)


def _nash_conv(one: MemberRank) -> Interval | None:
    return None if one.nash_conv is None else Interval(one.nash_conv, one.nash_conv, one.nash_conv)


def _nash_conv_text(one: MemberRank) -> str:
    return NOTHING if one.nash_conv is None else f"{one.nash_conv:.3f}"


class Column(NamedTuple):
    """A column of the ranking: a member's text, whether only games for two and only the page have it."""

    head: str
    text: Callable[[MemberRank], str]
    of_pairs: bool = False
    of_page: bool = False


_COLUMNS = (
    Column("Mean reward", lambda one: score_text(one.score)),
    Column("Against Nash", lambda one: score_text(one.nash_score), of_pairs=True, of_page=True),
    Column("Bradley-Terry", lambda one: score_text(one.bradley_terry, ".0f"), of_pairs=True),
    Column("TrueSkill", lambda one: score_text(_trueskill(one), ".1f")),
    Column("Nash, %", lambda one: _share_text(one.nash), of_pairs=True),
    Column("α-rank, %", lambda one: _share_text(one.alpharank), of_pairs=True),
    Column("Invalid", lambda one: f"{one.invalid / one.games:.1%}" if one.games else NOTHING),
)


def _ranking(rankings: Rankings, *, briefly: bool = False) -> Table:
    """Return the ranking with notes on intervals, dominated members and cycles, ``briefly`` in a terminal."""
    matrix = rankings.matrix
    of_pairs = matrix is not None
    columns = [one for one in _COLUMNS if of_pairs >= one.of_pairs and not (briefly and one.of_page)]
    if rankings.reference_pool is not None:
        columns.append(Column("Anchored", lambda one: score_text(one.anchored, ".0f")))
    if any(one.nash_conv is not None for one in rankings.members):
        columns.append(Column("NashConv", _nash_conv_text))
    rows: list[Row] = [
        [f"{number} {one.uid}", *(column.text(one) for column in columns)]
        for number, one in enumerate(rankings.members, start=1)
    ]
    notes = [INTERVALS, MANY_PLAYERS if matrix is None else WINS, INVALID]
    if matrix is not None:
        notes.append(f"In parentheses, of Nash and α-rank: the {RESAMPLED_RANGE}.")
        notes += [] if matrix.is_zero_sum else [NOT_ZERO_SUM]
        notes += [*_dominated(rankings), *_cycles(rankings)]
    if rankings.reference_pool is not None:
        notes.append(f"Anchored: by games against reference pool {rankings.reference_pool} alone. {ANCHORED}")
    return Table(("", *(column.head for column in columns)), [("", "", rows)], notes)


def _have_roles(rankings: Rankings) -> bool:
    return rankings.seats != tuple(map(str, range(len(rankings.seats))))


def _by_seat(rankings: Rankings) -> Table:
    """Return the mean reward of each member in each seat."""
    rows = [
        [f"{number} {one.uid}", *map(score_text, one.by_seat)]
        for number, one in enumerate(rankings.members, start=1)
    ]
    head = "Mean reward as" if _have_roles(rankings) else "Mean reward in seat"
    return Table((head, *rankings.seats), [("", "", rows)])


def _dominated(rankings: Rankings) -> Iterator[str]:
    """Yield who is dominated by each member that dominates some."""
    for better in dict.fromkeys(one.dominated_by for one in rankings.members):
        if better is not None:
            below = ", ".join(one.uid for one in rankings.members if one.dominated_by == better)
            yield f"{better} dominates {below}: nowhere worse, and somewhere better beyond noise."
    if not any(one.dominated_by for one in rankings.members):
        yield "No member is dominated."


def _cycles(rankings: Rankings) -> list[str]:
    return [_cycle_text(cycle) for cycle in rankings.cycles] or [NO_CYCLE]


def _cycle_text(cycle: Cycle) -> str:
    around = f"A cycle: {' beats '.join((*cycle.shortest, cycle.shortest[0]))}."
    if len(cycle.group) == len(cycle.shortest):
        return around
    return f"{around} It is the shortest of a group of {len(cycle.group)}: {', '.join(cycle.group)}."


def _print_matrix(rankings: Rankings, matrix: PayoffMatrix, console: Console) -> None:
    """Print the matrix, with intervals if they fit the terminal, or say that it does not fit."""
    tables = [_matrix_table(rankings, matrix, intervals=intervals) for intervals in (True, False)]
    options = console.options.update_width(_ANY_WIDTH)
    fitting = [one for one in tables if Measurement.get(console, options, one).maximum <= console.width]
    note = f"The matrix of {len(matrix.members)} members is wider than this terminal; it is on the page."
    console.print(fitting[0] if fitting else Text(note))
    console.print()


def _matrix_table(rankings: Rankings, matrix: PayoffMatrix, *, intervals: bool) -> RichTable:
    """Return the mean reward of each row against each column, best member first.

    A mean whose interval is above 0 is green, and one whose interval is below 0 is red.
    """
    place = {uid: row for row, uid in enumerate(matrix.members)}
    order = [place[one.uid] for one in rankings.members]
    table = RichTable(box=None, pad_edge=False)
    table.add_column("Mean reward\nof the row", max_width=_NAME_WIDTH, no_wrap=True)
    for number in range(1, len(order) + 1):
        head = f"{'against' if number == 1 else ''}\n{number}"
        table.add_column(head, justify="right", no_wrap=True)
    for number, row in enumerate(order, start=1):
        cells = [Text(NOTHING) if row == one else _cell(matrix, row, one, intervals) for one in order]
        table.add_row(Text(f"{number} {one_line(matrix.members[row])}"), *cells)
    return table


def _cell(matrix: PayoffMatrix, row: int, column: int, interval: bool) -> Text:
    mean, spread = matrix.mean_MM[row, column], NORMAL_95 * matrix.error_MM[row, column]
    if math.isnan(mean):
        return Text("?")
    style = "green" if mean > spread else "red" if mean < -spread else ""
    text = score_text(Interval(mean - spread, mean, mean + spread)) if interval else f"{mean:+z.2f}"
    return Text(text, style=style)


def payoff_map(matrix: PayoffMatrix, order: Sequence[int], caption: str) -> PlotlyFigure:
    """Return the mean rewards of rows against columns, the members in an order, as a heat map."""
    means = [
        [_known(matrix.mean_MM[row, column]) if row != column else None for column in order] for row in order
    ]
    largest = max((abs(value) for row in means for value in row if value is not None), default=1.0) or 1.0
    about = [[_about(matrix, row, column) for column in order] for row in order]
    names = [matrix.members[row] for row in order]
    cells = heat_cells(names, names, means, about)
    few = len(names) <= _NUMBERS_IN_CELLS
    trace = heat_trace(cells, (-largest, largest), "+.2f", "%{customdata}", in_cells=few)
    return PlotlyFigure("Payoffs", caption, [trace], heat_layout(len(order)))


def _about(matrix: PayoffMatrix, row: int, column: int) -> str:
    error = matrix.error_MM[row, column]
    spread = f", standard error {error:.3f}" if math.isfinite(error) else ""
    return f"{matrix.mean_MM[row, column]:+.3f}{spread}, {counted(int(matrix.games_MM[row, column]), 'game')}"


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _tiles(table: PayoffTable, rankings: Rankings) -> list[tuple[str, str, str]]:
    payoffs = [payoff for _, payoff in table.items()]
    games, failed = (sum(getattr(one, name) for one in payoffs) for name in ("games", "failed"))
    invalid = sum(sum(payoff.invalid) for payoff in payoffs)
    best = rankings.members[0]
    tiles = [
        ("Games", f"{games:,}", f"{failed:,} failed" if failed else ""),
        ("Ended by an invalid move", f"{invalid / games:.1%}", ""),
        ("Highest mean reward", best.uid, score_text(best.score)),
    ]
    if rankings.matrix is not None:
        dominated = sum(one.dominated_by is not None for one in rankings.members)
        tiles.append(("Dominated members", str(dominated), ""))
        tiles.append(("Groups with cycles", str(len(rankings.cycles)), ""))
    measured = [one for one in rankings.members if one.nash_conv is not None]
    if measured:
        least = min(measured, key=lambda one: one.nash_conv or 0.0)
        tiles.append(("Least exploitable", least.uid, f"NashConv {_nash_conv_text(least)}"))
    return tiles


def _figures(rankings: Rankings) -> Iterator[PlotlyFigure]:
    """Yield the members by each measure with its intervals, best member by mean reward at the top."""
    for title, axis, caption, value in _MEASURES:
        found = {one.uid: interval for one in rankings.members if (interval := value(one)) is not None}
        if found:
            yield members_figure(title, caption, axis, found)


def _share(share: ResampledShare | None) -> Interval | None:
    return None if share is None else Interval(share.low, share.share, share.high)


_ELO = "400 points more are ten times the odds of a win; a draw is half a win. With 95% intervals."
_FIELD = "Against the field: every other member has the same weight. With 95% intervals."
_EXACT = "What best responses gain against the member, summed over the seats: computed exactly, 0 is best."
_NASH = f"Each member's share in the equilibrium of maximum entropy, with the {RESAMPLED_RANGE}."
_ALPHA = f"How long evolution stays with it, by who beats whom alone, with the {RESAMPLED_RANGE}."
_SIGMA = "Plus and minus two standard deviations. Depends on the order of games."
_MEASURES: tuple[tuple[str, str, str, Callable[[MemberRank], Interval | None]], ...] = (
    ("Mean reward", "mean reward", _FIELD, lambda one: one.score),
    ("Bradley-Terry", "rating", _ELO, lambda one: one.bradley_terry),
    ("TrueSkill", "rating", _SIGMA, _trueskill),
    ("Anchored", "rating", ANCHORED, lambda one: one.anchored),
    ("Nash averaging", "share", _NASH, lambda one: _share(one.nash)),
    ("α-rank", "share", _ALPHA, lambda one: _share(one.alpharank)),
    ("NashConv", "NashConv", _EXACT, _nash_conv),
)
"""Title, axis, caption and value of each figure."""


def _games(samples: Mapping[str, Sequence[Path]]) -> dict[str, list[Card]]:
    """Return the games to read of each pair or group, by its name as HTML."""
    return {
        escape(name): [
            card_of(replace(one, index=number))
            for number, path in enumerate(paths)
            if path.is_file()
            for one in first_episodes(path, 1)
        ]
        for name, paths in samples.items()
    }
