"""The population: who beats whom now, ratings with intervals, draws and cycles."""

from textwrap import wrap

from textual.content import Content
from textual.geometry import Size

from selfplay.read.numbers import number_text
from selfplay.read.population import COPY, Population, Standing
from selfplay.read.run_view import RunView
from selfplay.watch.plot import MUTED, Piece, content_of
from selfplay.watch.tables import interval_bar, short

NO_MATCHES = "No matches between models are known. A run records them with its first checkpoint."
MAX_RATINGS = 40
_NARROW, _WIDE = 6, 10
"""Characters of a cell."""
Rows = list[list[Piece]]


def population_panel(view: RunView, room: Size) -> Content:
    """Return the newest matrix for as many members as fit and, if they are known, ratings and cycles.

    A cell shows the score of the row's model: wins plus half of the draws, per hundred games. If there is
    enough space, the number of games is below it.
    """
    population = view.population()
    if population is None or not population.members:  # so far nobody met a frozen copy
        return Content.styled(NO_MATCHES, MUTED)
    drawn = {uid: int(figures.get("drawn", 0)) for uid, figures in view.pool().items()}
    rows = _matrix(population, room)
    if population.ratings:
        rows += [[], *_cycles(population, room.width), [], *_ratings(population, drawn, room.width)]
    return content_of(rows)


def _matrix(population: Population, room: Size) -> Rows:
    """Return the heat map; if frozen members never meet, it has rows only for policies."""
    frozen_met = any({*pair}.issubset(population.frozen) for pair in population.pairs)
    names = min(18, max(len(uid) for uid in population.members) + 1)
    most = (room.width - names) // _NARROW
    if frozen_met:
        most = min(most, room.height - 4)
    shown = population.newest(max(2, most))
    policies = [uid for uid in shown if uid in population.policies]
    rows = policies if policies and not frozen_met else shown
    cell = max(_NARROW, min(_WIDE, (room.width - names) // len(shown)))
    with_counts = 2 * len(rows) + 4 <= room.height
    heads = "".join(f"{_head(uid, cell - 1):^{cell}}" for uid in shown)
    lines: Rows = [[(f"{'':<{names}}{heads}", MUTED)]]
    for uid in rows:
        cells = [_cell(population.standing(uid, other), cell) for other in shown]
        lines.append([(f"{short(uid, names - 1):<{names}}", ""), *(score for score, _ in cells)])
        if with_counts:
            lines.append([(" " * names, ""), *(games for _, games in cells)])
    lines += [[], [(_note(population, with_counts), MUTED)]]
    left_out = len(population.members) - len(shown)
    return [*lines, [(f"{left_out} older copies do not fit.", MUTED)]] if left_out > 0 else lines


def _note(population: Population, with_counts: bool) -> str:
    after = f" after update {population.step}" if population.step is not None else ""
    below = " Below: games." if with_counts else ""
    return f"Points of the row in 100 games{after}; a draw is half a point.{below}"


def _cell(one: Standing | None, width: int) -> tuple[Piece, Piece]:
    """Return a score and the number of games below it, on green from a half upwards and on red below."""
    if one is None:
        return (f"{'·':^{width}}", MUTED), (" " * width, "")
    games = f"{one.games:,}"
    games = f"{games if len(games) < width else number_text(one.games):^{width}}"
    strength = min(80, round(320 * abs(one.score.mid - 0.5)))
    style = f"$text on {'$success' if one.score.mid >= 0.5 else '$error'} {strength}%"
    return (f"{100 * one.score.mid:^{width}.0f}", f"bold {style}"), (games, style)


def _head(uid: str, width: int) -> str:
    """Return the head of a column; of a copy, the update after which it was frozen is whole."""
    if copy := COPY.fullmatch(uid):
        update, policy = copy["update"], copy["policy"] or ""
        return short(policy[: max(0, width - len(update))] + update, width)
    return short(uid.removeprefix("fixed-"), width)


def _cycles(population: Population, width: int) -> Rows:
    found = [f"A cycle: {one}." for one in population.cycle_texts()]
    return [
        [(line, "")] for one in found or [population.no_cycle_text()] for line in wrap(one, max(1, width))
    ]


def _ratings(population: Population, drawn: dict[str, int], width: int) -> Rows:
    """Return the best Bradley-Terry ratings with their intervals and how often each member was drawn."""
    best = sorted(population.ratings.items(), key=lambda one: -one[1].mid)[:MAX_RATINGS]
    names = min(24, max(8, *(len(uid) + 2 for uid, _ in best)))
    bars = max(10, width - names - 32)
    low, high = min(one.low for _, one in best), max(one.high for _, one in best)
    head = f"{'':<{names}}{'rating':>8}{'95% range':>14}{'drawn':>8}  "
    axis = f"{low:<{bars // 2}.0f}{high:>{bars - bars // 2}.0f}"
    rows: Rows = [[(head + axis, MUTED)]]
    for uid, one in best:
        limits = f"{one.low:.0f}–{one.high:.0f}"
        rows.append(
            [
                (f"{short(uid, names - 2):<{names}}", ""),
                (f"{one.mid:>8,.0f}", "bold"),
                (f"{limits:>14}{number_text(drawn.get(uid, 0)):>8}  ", MUTED),
                *interval_bar(one, bars, low, high),
            ]
        )
    return [*rows, [("Bradley-Terry: 400 points more are ten times the odds of a win.", MUTED)]]
