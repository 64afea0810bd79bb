"""The panel of evaluations: every figure of the first and the last one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from textual.content import Content
from textual.geometry import Size

from selfplay.core.intervals import Interval
from selfplay.read.evaluations import are_shares, exact_of, matches_of, measures_of
from selfplay.read.numbers import number_text
from selfplay.read.run_view import RunView
from selfplay.read.strength_charts import match_name
from selfplay.watch.plot import MUTED, Piece, content_of

UNPLAYABLE = "!"
"""Marks a NashConv of a policy that cannot be played."""


@dataclass(frozen=True)
class Figure:
    """One figure by step, each with its 95% interval (of width 0 if it is exact).

    At the steps in ``unplayable`` it is a NashConv of a policy that cannot be played.
    """

    name: str
    is_share: bool
    points: dict[int, Interval]
    unplayable: set[int] = field(default_factory=set)


def evaluation_figures(view: RunView) -> Iterator[Figure]:
    """Yield the figures of matches, of exact evaluations and of a program's measures."""
    for of_what, matches in matches_of(view.evaluations).items():
        name = match_name(view, *of_what)
        yield Figure(name, True, {one.step: one.rates()["Wins"] for one in matches})
        lost = {one.step: one.rates()["Lost by an invalid move"] for one in matches}
        yield Figure(f"invalid, {name.removeprefix('against ')}", True, lost)
    exact = exact_of(view.evaluations)
    for env_id, found in exact.items():
        name = f"NashConv, {env_id}" if len(exact) > 1 else "NashConv"
        values = {one.step: one.nash_conv or 0.0 for one in found}
        points = {step: Interval(value, value, value) for step, value in values.items()}
        yield Figure(name, False, points, {one.step for one in found if not one.is_playable})
    for name, measures in measures_of(view.evaluations).items():
        yield Figure(name, are_shares(measures), {one.step: one.interval() for one in measures})


def evaluation_panel(view: RunView, room: Size) -> Content:
    """Return every figure of the first and the last evaluation, with 95% intervals if they fit.

    A NashConv of a policy that cannot be played has a mark, which the last line explains.
    """
    figures = list(evaluation_figures(view))
    if not figures:
        return Content.styled("Nothing has been evaluated yet.", MUTED)
    intervals = room.width >= 42
    names = min(40, room.width - 27) if intervals else max(8, room.width - 15)
    step = max(max(one.points) for one in figures)
    head = f"{f'after step {step:,}':<{names}}{'first':>7}{'now':>8}"
    rows: list[list[Piece]] = [[(f"{head}  {'95% range':<10}" if intervals else head, MUTED)]]
    is_marked = False
    for one in figures:
        before, now = (_text(one, at) for at in (min(one.points), max(one.points)))
        is_marked = is_marked or UNPLAYABLE in before + now
        name = one.name if len(one.name) < names else one.name[: names - 2] + "…"
        row = [(f"{name:<{names}}", ""), (f"{before:>7}", MUTED), (f"{now:>8}", "bold")]
        rows.append([*row, (f"  {_interval(one)}", MUTED)] if intervals else row)
    if is_marked:
        note = f"{UNPLAYABLE} cannot be played: too little probability on legal answers"
        rows.append([(note[: room.width], "$text-warning")])
    return content_of(rows)


def _text(figure: Figure, step: int) -> str:
    value = number_text(figure.points[step].mid, percent=figure.is_share)
    return value + UNPLAYABLE * (step in figure.unplayable)


def _interval(figure: Figure) -> str:
    low, _, high = figure.points[max(figure.points)]
    if low == high:
        return "exact"
    if figure.is_share:
        return f"{100 * low:.1f}–{100 * high:.1f}"
    return f"{number_text(low)}–{number_text(high)}"
