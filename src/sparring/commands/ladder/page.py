"""A ladder as a table for the terminal, and as one HTML page: standings, games, curves and commands."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from statistics import fmean

from sparring.commands.ladder.results import CellResult, LadderResult, Point, entries_of
from sparring.commands.ladder.standings import (
    EntryStanding,
    GameLimits,
    after_games,
    after_minutes,
    limits_of,
)
from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted, number_text
from sparring.evaluation.figures import NASH_CONV
from sparring.view.charts import COLOURS, Chart, Line, banded_line, with_wide_axis
from sparring.view.report.html import Page, badge_html
from sparring.view.report.plotly import PlotlyFigure, figure_of
from sparring.view.tables import Bar, Cell, Row, Table, ends_of

NOTHING = "-"
SEVERAL = "Cells that are played at a time slow each other down: minutes count only with --jobs 1."
OVER_SEEDS = "A value is the mean over seeds, beside it the smallest and the largest."
BANDS = "Lines are means over seeds; bands reach from the smallest to the largest."
REPLAY = (
    "The same kind of processor with the same versions plays a cell again to the same bytes. SHA-256 is that "
    "of the adapter in its last checkpoint, or of its policy files."
)


def standings_table(result: LadderResult, standings: Sequence[EntryStanding]) -> Table:
    """Return the entries for a terminal, best first, with notes on what the numbers are."""
    rows: list[Row] = [
        [
            one.entry,
            _score(one.after_games),
            Cell(_score(one.after_minutes).text),
            Cell(_score(one.rank, ".1f").text),
            _minutes(one.seconds),
            f"{one.done} of {one.cells}",
        ]
        for one in standings
    ]
    heads = ("", "Equal games", "Equal minutes", "Rank", "Minutes", "Cells")
    problems = (f"{cell.name} failed: {cell.problem}" for cell in result.cells if cell.problem)
    return _without_empty(Table(heads, [("", "", rows)], [*_notes(result), *problems]))


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
        tiles.append(("Minutes", _minutes(seconds), "of playing and learning"))
    best = standings[0]
    if best.after_games is not None:
        tiles.append(("Best after equal games", best.entry, f"{best.after_games.mid:.3f}"))
    timed = [one for one in standings if one.after_minutes is not None]
    if timed:
        sign = 1 if result.smaller_is_better else -1
        quick = min(timed, key=lambda one: sign * one.after_minutes.mid if one.after_minutes else 0.0)
        tiles.append(("Best after equal minutes", quick.entry, _score(quick.after_minutes).text))
    return tiles


def _page_standings(result: LadderResult, standings: Sequence[EntryStanding]) -> Table:
    known = [one.after_games for one in standings if one.after_games is not None]
    low, high = ends_of(known, (0.0, float("inf"))) if known else (0.0, 1.0)
    rows: list[Row] = []
    for place, one in enumerate(standings):
        colour = COLOURS[place % len(COLOURS)]
        bars = (
            ()
            if one.after_games is None
            else (Bar(one.after_games, min(low, one.after_games.low), high, colour),)
        )
        rows.append(
            [
                Cell(one.entry, key=colour, badge=_missing(one), tone="warn"),
                _score(one.after_games),
                _score(one.after_minutes),
                _score(one.rank, ".1f"),
                number_text(one.games),
                _minutes(one.seconds),
                Cell(bars=bars),
            ]
        )
    heads = ("Entry", "Equal games", "Equal minutes", "Mean rank", "Games", "Minutes", "")
    return _without_empty(Table(heads, [("", "", rows)], [*_notes(result)]))


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


def _notes(result: LadderResult) -> Iterator[str]:
    better = "less" if result.smaller_is_better else "more"
    of_uniform = ", divided by that of uniform play" if result.measure.startswith(NASH_CONV) else ""
    yield (
        f"{result.measure}{of_uniform}: {better} is better. The interquartile mean over seeds and games, "
        "with 95% stratified bootstrap intervals."
    )
    yield "Rank: by the mean over seeds after equal games, in the mean over games."
    for game, limits in limits_of(result).items():
        if limits != GameLimits(None, None):
            of = "" if limits.seconds is None else " of playing and learning"
            yield f"{game}: after {_limits_text(limits)}{of}."
    if any(one.seconds is not None for one in limits_of(result).values()):
        yield SEVERAL


def _limits_text(limits: GameLimits) -> str:
    parts = [] if limits.games is None else [counted(limits.games, "game")]
    parts += [] if limits.seconds is None else [f"{limits.seconds / 60:.1f} minutes"]
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
                    _over_seeds(points),
                    _over_seeds(timed),
                    _minutes(fmean(seconds)) if seconds else NOTHING,
                ]
            )
        scale = result.scales[game]
        uniform = f"; uniform play {scale:.3f}" if result.measure.startswith(NASH_CONV) else ""
        groups.append((game, f"{_limits_text(limits)}{uniform}", rows))
    heads = ("", f"{result.measure}, equal games", "equal minutes", "Minutes a run")
    return _without_empty(Table(heads, groups, [OVER_SEEDS]))


def _over_seeds(points: Sequence[Point]) -> Cell:
    values = [point.value for point in points]
    if not values:
        return Cell(NOTHING)
    spread = f"{min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
    return Cell(f"{fmean(values):.3f}", spread, strong=True)


def _charts(result: LadderResult, game: str, standings: Sequence[EntryStanding]) -> Iterator[PlotlyFigure]:
    by_entry = entries_of(cell for cell in result.done if cell.game == game)
    axes: dict[str, Callable[[Point], float | None]] = {
        "games": lambda point: point.games,
        "minutes": lambda point: None if point.seconds is None else point.seconds / 60,
    }
    for unit, place_of in axes.items():
        lines = [
            replace(line, colour=colour)
            for colour, one in enumerate(standings)
            if (line := _line(one.entry, by_entry.get(one.entry, []), place_of)) is not None
        ]
        chart = with_wide_axis(Chart(f"{game} by {unit}", lines, f"{result.measure}.")) if lines else None
        if chart is not None:
            figure = figure_of(chart)
            yield replace(figure, layout={**figure.layout, "xaxis": {"title": {"text": unit, "standoff": 4}}})


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
    value = f"{cell.points[-1].value:.4f}" if cell.points else ""
    badge = badge_html("failed", "bad") if cell.problem else "" if cell.points else badge_html("missing")
    problem = f'<p class="bad">{escape(cell.problem)}</p>' if cell.problem else ""
    end = f'<p class="muted line">SHA-256 {escape(cell.sha256)}</p>' if cell.sha256 else ""
    return (
        f'<details class="game"><summary><span class="game-name">{escape(cell.name)}</span> {value} {badge}'
        f'</summary><div class="turns">{problem}<pre>{escape(cell.command)}</pre>{end}</div></details>'
    )


def _score(score: Interval | None, form: str = ".3f") -> Cell:
    if score is None:
        return Cell(NOTHING)
    low, mid, high = (f"{one:{form}}" for one in score)
    return Cell(mid, f"{low} to {high}", strong=True)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}" if seconds else NOTHING
