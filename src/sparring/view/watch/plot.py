"""Draws a chart in Braille dots, of which a character has two columns and four rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import ceil, floor, log10
from operator import itemgetter

from textual.content import Content

from sparring.core.text import number_text, printable
from sparring.view.charts import COLOURS, Chart, Line, round_range

MUTED = "$foreground 60%"
TINY = 1e-200
"""Values below this are drawn as 0."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Piece = tuple[str, str]


def content_of(rows: Iterable[Sequence[Piece]]) -> Content:
    """Return rows of (text, style) as lines, without characters that act on a terminal."""
    return Content("\n").join(
        Content.assemble(*((printable(text, keep=""), style) for text, style in row)) for row in rows
    )


def colour_of(index: int) -> str:
    """Return the colour of a line or seat; a negative index gives the neutral colour."""
    return COLOURS[index % len(COLOURS)] if index >= 0 else MUTED


def draw_chart(chart: Chart, turn: str, width: int, height: int) -> Content:
    """Return a chart that fills ``width`` characters and ``height`` lines.

    A legend with the last values is at the top, the curves are below it, and the first and last ``turn`` (an
    update or iteration) are at the bottom. Intervals are drawn as fainter bars.
    """
    legend = _legend(chart, width)
    rows = height - len(legend) - 1
    if rows < 1:
        return content_of(legend[: max(0, height)])
    axis = _log_axis(chart) if chart.axis == "log" else _round_axis(chart)
    shown = {0: 1.0, rows - 1: 0.0} | ({rows // 2: 0.5} if rows >= 7 and rows % 2 else {})
    texts = axis.texts([axis.at(share) for share in shown.values()])
    labels = dict(zip(shown, texts, strict=True))
    margin = max(map(len, labels.values()))
    first, last = _steps(chart)
    canvas = _Canvas(max(1, width - margin - 1), rows)
    scale = _Scale(first, last, axis, canvas)
    for line in chart.lines:
        _draw_intervals(canvas, scale, line)
    for line in chart.lines:
        _draw_line(canvas, scale, line)
    lines = [content_of(legend)]
    for row in range(rows):
        edge = f"{labels.get(row, ''):>{margin}}{'┤' if row in labels else '│'}"
        lines.append(Content.assemble((edge, MUTED), *canvas.row(row)))
    lines.append(Content.styled(_turn_axis(first, last, turn, margin, canvas.width), MUTED))
    return Content("\n").join(lines)


def _legend(chart: Chart, width: int) -> list[list[Piece]]:
    """Return at most three lines of names and last values; an unnamed line shows only its value."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for line in chart.lines:
        value = number_text(line.values[-1], percent=chart.axis == "share")
        name = f"{line.name} " if line.name else ""
        room = width - len(value) - 4
        name = name if len(name) <= room else name[: max(0, room - 2)] + "… "
        taken = len(name) + len(value) + 4
        if used and used + taken > width:
            lines.append([])
            used = 0
        lines[-1] += [("━ ", colour_of(line.colour)), (name, MUTED), (f"{value}  ", "bold")]
        used += taken
    return lines[:3]


def _turn_axis(first: float, last: float, turn: str, margin: int, width: int) -> str:
    begin, end = f"{first:,.0f}", f"{last:,.0f}"
    if first == last or width < len(begin) + len(end) + 2:
        return f"{'':>{margin}}└{end:─^{width}}"
    gap = width - len(begin) - len(end)
    middle = f" {turn} " if gap >= len(turn) + 8 else ""
    return f"{'':>{margin}}└{begin}{middle:─^{gap}}{end}"


@dataclass(frozen=True)
class _Axis:
    """The range of values and the spacing of round numbers; ``step`` is 0 on a logarithmic axis."""

    low: float
    high: float
    step: float
    percent: bool = False

    def share(self, value: float) -> float:
        """Return how far up a value is; 0 at the lowest and 1 at the highest."""
        if self.step:
            return (value - self.low) / (self.high - self.low)
        return log10(max(value, self.low) / self.low) / log10(self.high / self.low)

    def at(self, share: float) -> float:
        """Return the value at this share of the height."""
        if self.step:
            return self.low + share * (self.high - self.low)
        return float(self.low * (self.high / self.low) ** share)

    def texts(self, values: list[float]) -> list[str]:
        """Return numbers with as many digits as the distance between round numbers has, or one more."""
        unit, step = "%" if self.percent else "", self.step
        if self.percent:
            values, step = [100 * value for value in values], 100 * step
        if step >= 1e4 or step < 1e-4:
            return [number_text(value) + unit for value in values]
        digits = max(0, -floor(log10(step)))
        digits += any(abs(round(value, digits) - value) > step / 10 for value in values)
        return [f"{value + 0.0:,.{digits}f}{unit}" for value in values]


def _round_axis(chart: Chart) -> _Axis:
    values = [value for line in chart.lines for value in line.values]
    low, high = min([*values, *chart.bounds]), max([*values, *chart.bounds])
    size = max(abs(low), abs(high))
    if size < TINY:
        low, high = 0.0, 1.0
    elif high - low < 1e-9 * size:
        low, high = low - size / 2, high + size / 2
    return _Axis(*round_range(low, high), percent=chart.axis == "share")


def _log_axis(chart: Chart) -> _Axis:
    """Return a logarithmic axis over whole decades that enclose all values above 0."""
    values = [value for line in chart.lines for value in line.values if value > TINY] or [1.0]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return _Axis(10.0**low, 10.0 ** max(high, low + 1), 0.0)


def _steps(chart: Chart) -> tuple[float, float]:
    steps = [step for line in chart.lines for step in (line.steps[0], line.steps[-1])]
    return min(steps), max(steps)


@dataclass
class _Canvas:
    """A grid of dots in characters; a character has the colour of its latest dot."""

    width: int
    height: int
    _cells: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)

    def dot(self, x: int, y: int, style: str) -> None:
        """Set a dot; ``x`` counts from the left, ``y`` from the bottom. Dots outside are ignored."""
        if not (0 <= x < 2 * self.width and 0 <= y < 4 * self.height):
            return
        row, part = divmod(4 * self.height - 1 - y, 4)
        key = (row, x // 2)
        self._cells[key] = self._cells.get(key, (0, ""))[0] | _DOTS[part][x % 2], style

    def row(self, row: int) -> list[Piece]:
        """Return a row of characters with their styles."""
        cells = [self._cells.get((row, column), (0, "")) for column in range(self.width)]
        return [(chr(0x2800 + dots) if dots else " ", style) for dots, style in cells]


@dataclass
class _Scale:
    """Maps steps and values to dots."""

    first: float
    last: float
    axis: _Axis
    canvas: _Canvas

    def x(self, step: float) -> int:
        """Return the column of a step; a single step is in the middle."""
        columns = 2 * self.canvas.width - 1
        span = self.last - self.first
        return round((step - self.first) / span * columns) if span else columns // 2

    def y(self, value: float) -> int:
        """Return the row of a value."""
        return round(self.axis.share(value) * (4 * self.canvas.height - 1))


def _draw_intervals(canvas: _Canvas, scale: _Scale, line: Line) -> None:
    style = f"{colour_of(line.colour)} 45%"
    for step, low, high in zip(line.steps, line.low, line.high, strict=False):
        if high > low:
            for y in range(scale.y(low), scale.y(high) + 1):
                canvas.dot(scale.x(step), y, style)


def _draw_line(canvas: _Canvas, scale: _Scale, line: Line) -> None:
    """Draw the range of values in each column and join the columns."""
    style = colour_of(line.colour)
    places = zip(line.steps, line.values, strict=True)
    points = _corners([(scale.x(step), scale.y(value)) for step, value in places])
    for (x, y), (next_x, next_y) in pairwise(points):
        length = max(abs(next_x - x), abs(next_y - y), 1)
        for part in range(length + 1):
            canvas.dot(
                x + round(part * (next_x - x) / length), y + round(part * (next_y - y) / length), style
            )


def _corners(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Reduce the points without changing the drawing: to the first, lowest, highest and last per column."""
    if len(points) == 1:
        x, y = points[0]
        return [(x, y), (x + 1, y)]
    corners = []
    for x, column in groupby(points, key=itemgetter(0)):
        ys = [y for _, y in column]
        corners += [(x, ys[0]), (x, min(ys)), (x, max(ys)), (x, ys[-1])]
    return corners
