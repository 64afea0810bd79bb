"""What a chart is: lines over steps, with intervals and the kind of axis that fits them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Literal

from sparring.core.confidence_intervals import Interval
from sparring.evaluation.figures import Figure
from sparring.view.metrics import Series

COLOURS = ["#3f7fe0", "#e07b39", "#2fa36b", "#c2549d", "#8d6fd6", "#a8912a"]
"""Line colours that are distinct on both a light and a dark background."""
WHOLE = (0.0, 1.0)
"""The bounds of an axis that shows all of 0% to 100%."""
SMALL = (0.0, 0.01)
"""The bounds of an axis of small shares: it reaches 1%, because labels below it would all read the same."""
FROM_ZERO = (0.0,)
Axis = Literal["plain", "share", "log"]


@dataclass(frozen=True)
class Line:
    """A line; ``low`` and ``high`` are its interval at each point, empty without one.

    The ``name`` is empty where the chart's title says it all. ``colour`` counts in ``COLOURS``; a chart gives
    the colour of its place to a line without one.
    """

    name: str
    steps: list[float]
    values: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    colour: int = -1


@dataclass(frozen=True)
class Chart:
    """Lines over steps. The axis reaches all ``bounds``; those of a ``share`` axis are between 0 and 1.

    A ``log`` axis is logarithmic. The areas below ``stacked`` lines may be drawn on top of one another.
    """

    title: str
    lines: list[Line]
    caption: str = ""
    axis: Axis = "plain"
    bounds: tuple[float, ...] = ()
    stacked: bool = False

    @property
    def needs_legend(self) -> bool:
        """Whether a line has a name of its own."""
        return any(line.name for line in self.lines)


def lines_of(named: Mapping[str, Series]) -> list[Line]:
    """Return a line for each metric that has points, in order."""
    return [Line(name, one.steps, one.values) for name, one in named.items() if one.steps]


def banded_line(name: str, points: Mapping[float, Interval]) -> Line:
    """Return a line with an interval at each point, given by step."""
    low, middle, high = (list(ends) for ends in zip(*points.values(), strict=True))
    return Line(name, [float(step) for step in points], middle, low, high)


def figure_line(name: str, series: Mapping[int, Figure]) -> Line:
    """Return a figure of the evaluations by step, with its interval unless all are exact."""
    if all(figure.kind == "exact" for figure in series.values()):
        return Line(name, [*map(float, series)], [one.value for one in series.values()])
    return banded_line(name, {step: figure.interval for step, figure in series.items()})


def chart(
    title: str, lines: list[Line], caption: str, *, axis: Axis = "plain", bounds: tuple[float, ...] = ()
) -> Chart | None:
    """Return a chart; ``None`` without lines. A single line loses a name with which the title ends."""
    if not lines:
        return None
    if len(lines) == 1 and title.lower().endswith(lines[0].name.lower()):
        lines = [replace(lines[0], name="")]
    coloured = [replace(one, colour=place) if one.colour < 0 else one for place, one in enumerate(lines)]
    return Chart(title, coloured, caption, axis, bounds)


def share_chart(
    title: str, lines: list[Line], caption: str, bounds: tuple[float, ...] = WHOLE
) -> Chart | None:
    """Return a chart of shares; ``None`` without lines."""
    return chart(title, lines, caption, axis="share", bounds=bounds)


def round_range(low: float, high: float) -> tuple[float, float, float]:
    """Return round numbers that enclose a range, and the distance between round numbers in it."""
    step = _round_step((high - low) / 4)
    return step * floor(low / step + 1e-9), step * ceil(high / step - 1e-9), step


def _round_step(size: float) -> float:
    """Return the largest number not above ``size`` that is 1, 2 or 5 times a power of ten."""
    power: float = 10 ** floor(log10(size))
    return power * (5 if size >= 5 * power else 2 if size >= 2 * power else 1)


def with_wide_axis(found: Chart | None) -> Chart | None:
    """Return a chart of values above 0 with the axis that fits them; the caption names a logarithmic one.

    It is logarithmic if the values span more than a decade: within one, such an axis has no labels.
    """
    if found is None:
        return None
    values = [value for line in found.lines for value in line.values if value > 0]
    if not values or max(values) < 10 * min(values):
        return replace(found, bounds=FROM_ZERO)
    return replace(found, axis="log", caption=f"{found.caption} The axis is logarithmic.")
