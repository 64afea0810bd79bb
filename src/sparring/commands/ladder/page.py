"""A ladder as a table for the terminal, and as one HTML page: standings, games, curves and commands."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from math import inf
from statistics import fmean

from sparring.commands.ladder.results import CellResult, LadderResult, Point, entries_of, value_text
from sparring.commands.ladder.standings import (
    EntryStanding,
    GameLimits,
    after_games,
    after_minutes,
    best_of,
    limits_of,
)
from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted, number_text, precise_duration_text
from sparring.evaluation.figures import ANY, NASH_CONV
from sparring.view.charts import COLOURS, WHOLE, Chart, Line, banded_line, with_wide_axis
from sparring.view.report.html import Page, badge_html
from sparring.view.report.plotly import PlotlyFigure, figure_of
from sparring.view.tables import Bar, Cell, Row, Table, ends_of

NOTHING = "-"
SEVERAL = "Cells that are played at a time slow each other down: times count only with --jobs 1."
Scored = tuple[EntryStanding, Cell, Cell, Cell]
"""An entry with its scores after equal games and equal minutes, and its rank."""
TIED = "tied"
TIES = "Tied: the interval overlaps that of the best, so the two are not told apart."
ONCE = "What was run once in a game has no interval, and is not told apart from the best."
OVER_SEEDS = "A value is the mean over seeds, beside it the smallest and the largest."
BANDS = "Lines are means over seeds; bands reach from the smallest to the largest."
REPLAY = (
    "The same kind of processor with the same versions plays a cell again to the same bytes. SHA-256 is that "
    "of the adapter in its last checkpoint, or of its policy files."
)


def standings_table(result: LadderResult, standings: Sequence[EntryStanding]) -> Table:
    """Return the entries for a terminal, best first, with notes on what the numbers are."""
    scored = [*_scored(result, standings)]
    rows: list[Row] = [
        [one.entry, games, minutes.text, rank.text, _time(one.seconds)]
        for one, games, minutes, rank in scored
    ]
    heads = ("", "Equal games", "Equal minutes", "Rank", "Time")
    problems = (f"{cell.name} failed: {cell.problem}" for cell in result.cells if cell.problem)
    return _without_empty(Table(heads, [("", "", rows)], [*_notes(result, scored), *problems]))


def ladder_html(name: str, result: LadderResult, standings: Sequence[EntryStanding]) -> str:
    """Return the whole page. All text is escaped."""
    seeds = {cell.seed for cell in result.cells}
    parts = [counted(len(result.scales), "game"), _entries_text(len(standings)), counted(len(seeds), "seed")]
    where = f"{result.processor}, sparring {result.sparring}, torch {result.torch}"
    page = Page(f"Ladder: {name}", escape(f"{', '.join(parts)}. {where}."))
    page.tiles(_tiles(result, standings))
    page.table("Standings", _page_standings(result, standings))
    page.table("Games", _games_table(result, standings))
    charts = [chart for game in limits_of(result) for chart in _charts(result, game, standings)]
    page.charts("Curves", charts, BANDS)
    page.section("Cells", "".join(map(_cell_html, result.cells)), REPLAY)
    return page.html()


def _entries_text(number: int) -> str:
    return f"{number} entries" if number != 1 else "1 entry"


def _tiles(result: LadderResult, standings: Sequence[EntryStanding]) -> list[tuple[str, str, str]]:
    failed = sum(bool(cell.problem) for cell in result.cells)
    tiles = [
        (
            "Complete cells",
            f"{len(result.done)} of {len(result.cells)}",
            f"{failed} failed" if failed else "",
        ),
        ("Games of training", number_text(sum(one.games for one in standings)), ""),
    ]
    if seconds := sum(one.seconds for one in standings):
        tiles.append(("Time", _time(seconds), "of playing and learning"))
    for name, score in (("games", _games_score), ("minutes", _minutes_score)):
        best = best_of(standings, score, smaller_is_better=result.smaller_is_better)
        if len(best) > 1:
            tiles.append((f"Best after equal {name}", f"{len(best)} entries", "not told apart"))
        elif best and (value := score(best[0])) is not None:
            text = value_text(value.mid, is_share=result.is_share)
            tiles.append((f"Best after equal {name}", best[0].entry, text))
    return tiles


def _page_standings(result: LadderResult, standings: Sequence[EntryStanding]) -> Table:
    known = [one.after_games for one in standings if one.after_games is not None]
    is_exact = result.measure.startswith(NASH_CONV)
    bounds = WHOLE if result.is_share else (0.0, inf) if is_exact else ANY
    low, high = ends_of(known, bounds) if known else WHOLE
    rows: list[Row] = []
    scored = [*_scored(result, standings)]
    for place, (one, games, minutes, rank) in enumerate(scored):
        colour = COLOURS[place % len(COLOURS)]
        bars = () if one.after_games is None else (Bar(one.after_games, low, high, colour),)
        name = Cell(one.entry, key=colour, badge=_missing(one), tone="warn")
        rows.append([name, games, minutes, rank, number_text(one.games), Cell(bars=bars)])
    scale = "" if result.is_share else "Equal games; 1 is uniform play" if is_exact else "Equal games"
    heads = ("Entry", "Equal games", "Equal minutes", "Mean rank", "Games", scale)
    return _without_empty(Table(heads, [("", "", rows)], [*_notes(result, scored)], result.is_share))


def _scored(result: LadderResult, standings: Sequence[EntryStanding]) -> Iterator[Scored]:
    smaller, text = result.smaller_is_better, partial(value_text, is_share=result.is_share)
    games = _score_cells(standings, _games_score, text, smaller_is_better=smaller)
    minutes = _score_cells(standings, _minutes_score, text, smaller_is_better=smaller)
    ranks = _score_cells(standings, lambda one: one.rank, "{:.1f}".format, smaller_is_better=True)
    yield from zip(standings, games, minutes, ranks, strict=True)


def _games_score(one: EntryStanding) -> Interval | None:
    return one.after_games


def _minutes_score(one: EntryStanding) -> Interval | None:
    return one.after_minutes


def _score_cells(
    standings: Sequence[EntryStanding],
    score: Callable[[EntryStanding], Interval | None],
    text: Callable[[float], str],
    *,
    smaller_is_better: bool,
) -> Iterator[Cell]:
    """Yield a score of every entry with its interval, and a mark if it is tied for the best."""
    best = best_of(standings, score, smaller_is_better=smaller_is_better)
    for one in standings:
        found = score(one)
        if found is None:
            yield Cell(NOTHING)
            continue
        between = _between(found.low, found.high, text) if one.is_repeated else ""
        yield Cell(text(found.mid), between, TIED if len(best) > 1 and one in best else "", strong=True)


def _between(low: float, high: float, text: Callable[[float], str]) -> str:
    return f"{text(low).removesuffix('%')} to {text(high).removesuffix('%')}"


def _without_empty(table: Table) -> Table:
    """Return a table without the columns in which no row has anything."""
    rows = [row for _, _, group in table.groups for row in group]
    kept = [place for place in range(len(table.heads)) if any(_text(row[place]) != NOTHING for row in rows)]
    groups = [
        (title, note, [[row[place] for place in kept] for row in group])
        for title, note, group in table.groups
    ]
    return replace(table, heads=[table.heads[place] for place in kept], groups=groups)


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _missing(one: EntryStanding) -> str:
    return "" if one.done == one.cells else f"{one.done} of {one.cells} cells"


def _notes(result: LadderResult, scored: Sequence[Scored]) -> Iterator[str]:
    better = "less" if result.smaller_is_better else "more"
    scaled = ", divided by that of uniform play, so that 1 is uniform play and 0 an equilibrium"
    of_uniform = scaled if result.measure.startswith(NASH_CONV) else ""
    yield (
        f"{result.measure}{of_uniform}: {better} is better. The interquartile mean over seeds and games, "
        "with 95% stratified bootstrap intervals."
    )
    yield "Rank: by the mean over seeds after equal games, in the mean over games."
    if any(cell.badge for _, *cells in scored for cell in cells):
        yield TIES
    if any(one.after_games is not None and not one.is_repeated for one, *_ in scored):
        yield ONCE
    for game, limits in limits_of(result).items():
        if limits != GameLimits(None, None):
            of = "" if limits.seconds is None else " of playing and learning"
            yield f"{game}: after {_limits_text(limits)}{of}."
    if any(one.seconds is not None for one in limits_of(result).values()):
        yield SEVERAL


def _limits_text(limits: GameLimits) -> str:
    parts = [] if limits.games is None else [counted(limits.games, "game")]
    parts += [] if limits.seconds is None else [precise_duration_text(limits.seconds)]
    return ", or ".join(parts)


def _games_table(result: LadderResult, standings: Sequence[EntryStanding]) -> Table:
    groups = []
    for game, limits in limits_of(result).items():
        by_entry = entries_of(cell for cell in result.done if cell.game == game)
        rows: list[Row] = []
        for place, one in enumerate(standings):
            cells = by_entry.get(one.entry, [])
            points = [point for cell in cells if (point := after_games(cell, limits)) is not None]
            timed = [point for cell in cells if (point := after_minutes(cell, limits)) is not None]
            playable = all(point.is_playable for point in points)
            badge = "" if playable else "cannot be played"
            key = COLOURS[place % len(COLOURS)]
            seconds = [cell.points[-1].seconds or 0.0 for cell in cells]
            rows.append(
                [
                    Cell(one.entry, key=key, badge=badge, tone="warn"),
                    _over_seeds(points, is_share=result.is_share),
                    _over_seeds(timed, is_share=result.is_share),
                    _time(fmean(seconds)) if seconds else NOTHING,
                ]
            )
        scale = result.scales[game]
        uniform = f"; uniform play {scale:.3f}" if result.measure.startswith(NASH_CONV) and scale != 1 else ""
        groups.append((game, f"{_limits_text(limits)}{uniform}", rows))
    heads = ("", f"{result.measure}, equal games", "equal minutes", "Time a run")
    return _without_empty(Table(heads, groups, [OVER_SEEDS]))


def _over_seeds(points: Sequence[Point], *, is_share: bool) -> Cell:
    values, text = [point.value for point in points], partial(value_text, is_share=is_share)
    if not values:
        return Cell(NOTHING)
    return Cell(
        text(fmean(values)), _between(min(values), max(values), text) * (len(values) > 1), strong=True
    )


def _charts(result: LadderResult, game: str, standings: Sequence[EntryStanding]) -> Iterator[PlotlyFigure]:
    by_entry = entries_of(cell for cell in result.done if cell.game == game)
    longest = max(
        point.seconds or 0.0 for cells in by_entry.values() for cell in cells for point in cell.points
    )
    unit_of_time, seconds_of_it = ("seconds", 1) if longest < 60 else ("minutes", 60)
    axes: dict[str, Callable[[Point], float | None]] = {
        "games": lambda point: point.games,
        unit_of_time: lambda point: None if point.seconds is None else point.seconds / seconds_of_it,
    }
    for unit, place_of in axes.items():
        lines = [
            replace(line, colour=colour)
            for colour, one in enumerate(standings)
            if (line := _line(one.entry, by_entry.get(one.entry, []), place_of)) is not None
        ]
        chart = _chart(f"{game} by {unit}", lines, result) if lines else None
        if chart is not None:
            figure = figure_of(chart)
            yield replace(figure, layout={**figure.layout, "xaxis": {"title": {"text": unit, "standoff": 4}}})


def _chart(title: str, lines: list[Line], result: LadderResult) -> Chart | None:
    """Return a chart of shares, of values that are not below 0, or of any."""
    if result.is_share:
        return Chart(title, lines, f"{result.measure}.", "share", WHOLE)
    chart = Chart(title, lines, f"{result.measure}.")
    return chart if any(min(line.values) < 0 for line in lines) else with_wide_axis(chart)


def _line(name: str, cells: Sequence[CellResult], place_of: Callable[[Point], float | None]) -> Line | None:
    """Return the mean over seeds of each evaluation that all have; ``None`` without any place."""
    found = {}
    for points in zip(*(cell.points for cell in cells), strict=False):
        places = [place for point in points if (place := place_of(point)) is not None]
        values = [point.value for point in points]
        if len(places) == len(points):
            found[fmean(places)] = Interval(min(values), fmean(values), max(values))
    if not found:
        return None
    line = banded_line(name, found)
    return line if len(cells) > 1 else replace(line, low=[], high=[])


def _cell_html(cell: CellResult) -> str:
    value = value_text(cell.points[-1].value, is_share=cell.is_share) if cell.points else ""
    badge = badge_html("failed", "bad") if cell.problem else "" if cell.points else badge_html("missing")
    problem = f'<p class="bad">{escape(cell.problem)}</p>' if cell.problem else ""
    end = f'<p class="muted line">SHA-256 {escape(cell.sha256)}</p>' if cell.sha256 else ""
    return (
        f'<details class="game"><summary><span class="game-name">{escape(cell.name)}</span> {value} {badge}'
        f'</summary><div class="turns">{problem}<pre>{escape(cell.command)}</pre>{end}</div></details>'
    )


def _time(seconds: float) -> str:
    return precise_duration_text(seconds) if seconds else NOTHING
