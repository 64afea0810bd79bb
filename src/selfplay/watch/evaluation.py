"""The panel of evaluations: every figure of the first and the last one."""

from dataclasses import dataclass

from textual.content import Content
from textual.geometry import Size

from selfplay.read.charts import Line
from selfplay.read.evaluations import exact_of
from selfplay.read.numbers import number_text
from selfplay.read.run_view import RunView
from selfplay.read.strength_charts import measure_lines, nash_lines, rate_lines
from selfplay.watch.plot import MUTED, Piece, content_of

UNPLAYABLE = "!"
"""Marks a NashConv of a policy that cannot be played."""


@dataclass(frozen=True)
class _Figure:
    """One figure by step, and the marks of its first and its last value."""

    name: str
    line: Line
    is_share: bool
    marks: tuple[str, str] = ("", "")

    def text(self, place: int) -> str:
        """Return the first (0) or the last (-1) value with its mark."""
        return number_text(self.line.values[place], percent=self.is_share) + self.marks[place]

    def interval(self) -> str:
        """Return the 95% interval of the last value."""
        if not self.line.low or self.line.low[-1] == self.line.high[-1]:
            return "exact"
        low, high = self.line.low[-1], self.line.high[-1]
        if self.is_share:
            return f"{100 * low:.1f}–{100 * high:.1f}"
        return f"{number_text(low)}–{number_text(high)}"


def evaluation_panel(view: RunView, room: Size) -> Content:
    """Return every figure of the first and the last evaluation, with 95% intervals if they fit.

    Before the second evaluation there is one column.

    A NashConv of a policy that cannot be played has a mark, which the last line explains.
    """
    figures = _figures(view)
    if not figures:
        return Content.styled("Nothing has been evaluated yet.", MUTED)
    intervals = room.width >= 42
    names = min(40, room.width - 27) if intervals else max(8, room.width - 15)
    first, last = (ends(step for one in figures for step in one.line.steps) for ends in (min, max))
    again = first < last
    head = f"{f'after {view.turn} {last:,.0f}':<{names}}{'first' if again else '':>7}{'now':>8}"
    rows: list[list[Piece]] = [[(f"{head}  {'95% range':<10}" if intervals else head, MUTED)]]
    for one in figures:
        name = one.name if len(one.name) < names else one.name[: names - 2] + "…"
        row = [
            (f"{name:<{names}}", ""),
            (f"{one.text(0) if again else '':>7}", MUTED),
            (f"{one.text(-1):>8}", "bold"),
        ]
        rows.append([*row, (f"  {one.interval()}", MUTED)] if intervals else row)
    if any(mark for one in figures for mark in one.marks):
        note = f"{UNPLAYABLE} cannot be played: too little probability on legal answers"
        rows.append([(note[: room.width], "$text-warning")])
    return content_of(rows)


def _figures(view: RunView) -> list[_Figure]:
    """Return the figures of matches, of exact evaluations and of a program's measures."""
    figures = []
    for won, lost in zip(rate_lines(view, "Wins"), rate_lines(view, "Lost by an invalid move"), strict=True):
        figures.append(_Figure(won.name, won, True))
        figures.append(_Figure("  lost by an invalid move", lost, True))
    exact = exact_of(view.evaluations)
    for line in nash_lines(view):
        first, last = (UNPLAYABLE * (not exact[line.name][place].is_playable) for place in (0, -1))
        name = f"NashConv, {line.name}" if len(exact) > 1 else "NashConv"
        figures.append(_Figure(name, line, False, (first, last)))
    for shares in (True, False):
        figures += [_Figure(line.name, line, shares) for line in measure_lines(view, shares=shares)]
    return figures
