"""Charts, members and matrices as Plotly's figures, which a page's script draws in the page's own colours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sparring.core.confidence_intervals import Interval
from sparring.view.charts import COLOURS, WHOLE, Chart, Line

FEW_POINTS = 40
"""The points of a line with up to this many are marked."""
MARGIN = 0.02
"""The free space below 0% and above 100%, in which lines at the edge can be seen."""

GREY = "#8a94a3"
"""A colour that is visible on a light and on a dark background."""
SCALE = [[0, "#d9722e"], [0.5, "#f4f4f4"], [1, "#3f7fe0"]]
"""From the worst to the best of the row, on a light and on a dark background."""

Json = dict[str, Any]


@dataclass(frozen=True)
class PlotlyFigure:
    """A titled figure: Plotly's traces, and the layout options that differ from the page's own.

    ``lines`` of text stand below it. A ``wide`` one has a row of the page for itself.
    """

    title: str
    caption: str
    traces: list[Json]
    layout: Json
    lines: tuple[str, ...] = ()
    wide: bool = False


def figure_of(chart: Chart) -> PlotlyFigure:
    """Return a chart as a figure."""
    traces = []
    for line in chart.lines:
        if len(line.steps) > 1 and line.low:
            traces.append(_band(line))
        traces.append(_trace(line, chart))
    layout = {"yaxis": _value_axis(chart), "showlegend": chart.needs_legend}
    return PlotlyFigure(chart.title, chart.caption, traces, layout)


def plain(text: str) -> str:
    """Return text for Plotly, which reads a few HTML tags in names and labels but no quote entities."""
    return escape(text, quote=False)


def _trace(line: Line, chart: Chart) -> Json:
    """Return one line; the interval of a single point is an error bar."""
    trace: Json = {
        "type": "scatter",
        "mode": "lines+markers" if len(line.steps) <= FEW_POINTS and not chart.stacked else "lines",
        "name": plain(line.name or chart.title),
        "x": line.steps,
        "y": _short(line.values),
        "line": {"color": _colour(line), "width": 2} | _dashes(line),
    }
    if chart.stacked:
        trace["stackgroup"] = "stacked"
    if len(line.steps) == 1 and line.low:
        (low,), (middle,), (high,) = line.low, line.values, line.high
        spread = {"array": [high - middle], "arrayminus": [middle - low]}
        trace["error_y"] = {"type": "data", "symmetric": False, **spread}
    return trace


def _band(line: Line) -> Json:
    colour = _colour(line)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*line.steps, *reversed(line.steps)],
        "y": _short([*line.high, *reversed(line.low)]),
        "fill": "toself",
        "fillcolor": f"rgba({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)}, 0.16)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _colour(line: Line) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _dashes(line: Line) -> Json:
    """Return what tells a line from an earlier one of the same colour."""
    return {"dash": "dot"} if line.colour >= len(COLOURS) else {}


def _short(values: list[float]) -> list[float]:
    """Return the values with six digits, which is more than a screen shows and keeps the page small."""
    return [float(f"{value:.6g}") for value in values]


def _value_axis(chart: Chart) -> Json:
    values = [value for line in chart.lines for value in (*line.values, *line.low, *line.high)]
    largest = max(map(abs, values))
    axis: Json = {}
    if chart.axis == "share":
        axis["tickformat"] = ".2~%"
    elif 0 < largest < 1e-3:
        axis["tickformat"] = ".2~e"
    elif largest >= 1e4:
        axis["tickformat"] = "~s"
    if chart.axis == "log":
        positive = [value for value in values if value > 0]
        decades = math.log10(max(positive) / min(positive))
        return axis | {"type": "log", "dtick": "D2" if decades < 3 else 1}
    if chart.bounds == WHOLE:
        return axis | {"range": [-MARGIN, 1 + MARGIN]}
    if len(chart.bounds) > 1 and largest <= max(chart.bounds):
        return axis | {"range": [*chart.bounds]}
    return axis | ({"rangemode": "tozero"} if chart.bounds else {})


def members_figure(
    title: str, caption: str, axis: str, members: Mapping[str, Interval], highlighted: Sequence[str] = ()
) -> PlotlyFigure:
    """Return the values of members with their intervals, the first at the top; some in another colour."""
    found = [*members.values()]
    trace: Json = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.mid for one in found],
        "y": [*map(plain, members)],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_finite(one.high - one.mid) for one in found],
            "arrayminus": [_finite(one.mid - one.low) for one in found],
            "color": GREY,
            "width": 3,
        },
        "marker": {
            "color": [COLOURS[bool(highlighted) and uid not in highlighted] for uid in members],
            "size": 8,
        },
        "hovertemplate": "%{y}: %{x:.4~g}<extra></extra>",
    }
    return PlotlyFigure(title, caption, [trace], members_layout(axis, len(members)))


def members_layout(axis: str, rows: int) -> Json:
    """Return the layout of a figure with a row for each member, the first at the top."""
    return {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {"type": "category", "automargin": True, "autorange": "reversed"},
        "hovermode": "closest",
        "showlegend": False,
        "height": max(240, 100 + 24 * rows),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def heat_cells(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    about: Sequence[Sequence[Any]],
) -> Json:
    """Return the part of a trace that says who its rows and columns are, each value and its hover data."""
    return {"x": list(map(plain, columns)), "y": list(map(plain, rows)), "z": values, "customdata": about}


def heat_trace(cells: Json, limits: tuple[float, float], number: str, hover: str, *, in_cells: bool) -> Json:
    """Return the trace of a heat map.

    Args:
        cells: see :func:`heat_cells`.
        limits: the values with the strongest colours.
        number: the format of a number.
        hover: the text of a cell, as Plotly's template after the names of its row and column.
        in_cells: whether the cells show their numbers.
    """
    trace = {
        "type": "heatmap",
        **cells,
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": SCALE,
        "colorbar": {"tickformat": number},
        "hovertemplate": f"%{{y}} against %{{x}}: {hover}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }
    if in_cells:
        trace |= {"texttemplate": f"%{{z:{number}}}", "textfont": {"color": "#1c2430"}}
    return trace


def heat_layout(rows: int) -> Json:
    """Return the layout of a heat map with so many rows, the first one at the top."""
    return {
        "xaxis": {"title": {"text": "against"}, "type": "category", "side": "top", "showgrid": False},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
        "hovermode": "closest",
        "margin": {"l": 48, "r": 12, "t": 60, "b": 10},
        "height": max(180, 110 + 34 * rows),
    }
