"""The charts as Plotly's figures, which the page's script draws in the page's own colours."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from selfplay.read.charts import COLOURS, WHOLE, Chart, Line

FEW_STEPS = 12
"""Up to this many steps, the axis has a tick for each; with more, Plotly chooses whole steps by itself."""
FEW_POINTS = 40
"""The points of a line with up to this many are marked."""
MARGIN = 0.02
"""The free space below 0% and above 100%, in which lines at the edge can be seen."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A titled figure: Plotly's traces, and the layout options that differ from the page's own.

    ``lines`` of text stand below it. A ``wide`` one has a row of the page for itself.
    """

    title: str
    caption: str
    traces: list[Json]
    layout: Json
    lines: tuple[str, ...] = ()
    wide: bool = False


def charts_html(
    sections: Mapping[str, Sequence[Figure]], last_step: int, notes: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Return sections of figures as HTML, and the JSON list of figures for the page's script.

    Args:
        sections: the figures by the section's title.
        last_step: the last step of any figure.
        notes: what stands below a section's title.
    """
    html: list[str] = []
    drawn: list[Json] = []
    steps = {"xaxis": {"dtick": 1}} if last_step <= FEW_STEPS else {}
    for title, figures in sections.items():
        cards = []
        for figure in figures:
            place = f"chart-{len(drawn)}"
            drawn.append({"id": place, "traces": figure.traces, "layout": {**steps, **figure.layout}})
            cards.append(
                f'<div class="card{" wide" * figure.wide}"><h3>{escape(figure.title)}</h3>'
                f'<p class="muted">{escape(figure.caption)}</p>'
                f'<div class="chart" id="{place}"></div>{_lines_html(figure.lines)}</div>'
            )
        note = f'<p class="muted">{escape(notes[title])}</p>' if notes and title in notes else ""
        html.append(
            f'<section><h2>{escape(title)}</h2>{note}<div class="grid">{"".join(cards)}</div></section>'
        )
    # "<" must not appear: it could end the script element.
    return "".join(html), json.dumps(drawn).replace("<", "\\u003c")


def _lines_html(lines: Sequence[str]) -> str:
    """Return lines of text as a list; empty without any."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in lines)}</ul>" if lines else ""


def figure_of(chart: Chart) -> Figure:
    """Return a chart as a figure."""
    traces = []
    for line in chart.lines:
        if len(line.steps) > 1 and line.low:
            traces.append(_band(line))
        traces.append(_trace(line, chart))
    layout = {"yaxis": _value_axis(chart), "showlegend": chart.needs_legend}
    return Figure(chart.title, chart.caption, traces, layout)


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
        "line": {"color": _colour(line), "width": 2},
    }
    if chart.stacked:
        trace["stackgroup"] = "stacked"
    if len(line.steps) == 1 and line.low:
        (low,), (middle,), (high,) = line.low, line.values, line.high
        spread = {"array": [high - middle], "arrayminus": [middle - low]}
        trace["error_y"] = {"type": "data", "symmetric": False, **spread}
    return trace


def _band(line: Line) -> Json:
    """Return the interval of a line, drawn behind it."""
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


def _short(values: list[float]) -> list[float]:
    """Return the values with six digits, which is more than a screen shows and keeps the page small."""
    return [float(f"{value:.6g}") for value in values]


def _value_axis(chart: Chart) -> Json:
    """Return the options of the axis of values."""
    values = [value for line in chart.lines for value in (*line.values, *line.low, *line.high)]
    largest = max(map(abs, values))
    axis: Json = {}
    if chart.axis == "share":
        axis["tickformat"] = ".2~%"
    elif largest < 1e-3:
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
