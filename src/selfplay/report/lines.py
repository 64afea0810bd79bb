"""Lines and bands as plain Plotly traces, and the chart that contains them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeVar

from selfplay.report.summary import Rate

COLOURS = ["#3f7fe0", "#e07b39", "#2fa36b", "#c2549d", "#8d6fd6", "#a8912a"]
"""Line colours that are distinct on both a light and a dark page."""
SMALLEST_SHARE = 0.01
MAX_POINTS = 1000
"""Longer series are thinned to this many points."""

Series = tuple[list[float], list[float]]
Point = TypeVar("Point")


@dataclass
class Chart:
    """A titled chart: Plotly traces, and the layout options that differ from the page's own."""

    title: str
    caption: str
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)


def plain(text: str) -> str:
    """Return text for Plotly, which reads a few HTML tags in names and labels but no quote entities."""
    return escape(text, quote=False)


def share_axis(*, whole: bool = False, largest: float = 1.0) -> dict[str, Any]:
    """Return layout options for shares between 0 and 1.

    Args:
        whole: show all of 0% to 100%.
        largest: the largest share shown. Below 1% the axis still reaches 1%, because the labels of a
            smaller range would all read the same.
    """
    axis: dict[str, Any] = {"tickformat": ".2~%", "rangemode": "tozero"}
    if whole:
        axis["range"] = [-0.02, 1.02]
    elif largest < SMALLEST_SHARE:
        axis["range"] = [0, SMALLEST_SHARE]
    return {"yaxis": axis}


def wide_axis(traces: list[dict[str, Any]], tickformat: str) -> dict[str, Any]:
    """Return layout options for values above 0 of any size: logarithmic if they span more than a decade.

    Plotly puts no labels on a logarithmic axis within a decade, so that axis is linear.
    """
    values = [value for trace in traces for value in trace["y"] if value > 0]
    if not values or max(values) < 10 * min(values):
        return {"yaxis": {"tickformat": tickformat, "rangemode": "tozero"}}
    decades = math.log10(max(values) / min(values))
    return {"yaxis": {"type": "log", "tickformat": tickformat, "dtick": "D2" if decades < 3 else 1}}


def largest(traces: list[dict[str, Any]]) -> float:
    """Return the largest value of all traces; 0 without any."""
    return max((value for trace in traces for value in trace["y"]), default=0.0)


def thin(values: list[Point]) -> list[Point]:
    """Return every k-th value, and always the last, so that about ``MAX_POINTS`` remain."""
    stride = -(-len(values) // MAX_POINTS)
    if stride <= 1:
        return values
    thinned = values[::stride]
    return thinned if (len(values) - 1) % stride == 0 else [*thinned, values[-1]]


def curve(name: str, series: Series, index: int, *, markers: bool = False) -> dict[str, Any]:
    """Return one line; a series of a single point gets a marker, because a line would be invisible."""
    steps, values = series
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers or len(steps) == 1 else "lines",
        "name": plain(name),
        "x": thin(steps),
        "y": thin(values),
        "line": {"color": COLOURS[index % len(COLOURS)], "width": 2},
    }


def banded_curve(
    name: str, steps: Sequence[float], rates: list[Rate], index: int, *, markers: bool = True
) -> list[dict[str, Any]]:
    """Return a line with its interval, drawn as a band behind it or as an error bar at a single point."""
    series = [float(step) for step in steps], [rate.mid for rate in rates]
    one = curve(name, series, index, markers=markers)
    if len(steps) == 1:
        rate = rates[0]
        one["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [rate.high - rate.mid],
            "arrayminus": [rate.mid - rate.low],
        }
        return [one]
    colour = COLOURS[index % len(COLOURS)]
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": [*steps, *reversed(steps)],
        "y": [*(rate.high for rate in rates), *(rate.low for rate in reversed(rates))],
        "fill": "toself",
        "fillcolor": f"rgba({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)}, 0.16)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, one]
