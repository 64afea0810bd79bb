"""The charts as Plotly's figures, which the page's script draws in the page's own colours."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from selfplay.read.chart_list import chart_sections
from selfplay.read.charts import COLOURS, WHOLE, Chart, Line
from selfplay.read.whole_run import WholeRun

FEW_STEPS = 12
"""Up to this many steps, the axis has a tick for each; with more, Plotly chooses whole steps by itself."""
FEW_POINTS = 40
"""The points of a line with up to this many are marked."""
MAX_RATINGS = 30
"""The largest number of models in the chart of ratings."""
MARGIN = 0.02
"""The free space below 0% and above 100%, in which lines at the edge can be seen."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A titled figure: Plotly's traces, and the layout options that differ from the page's own."""

    title: str
    caption: str
    traces: list[Json]
    layout: Json


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
                f'<div class="card"><h3>{escape(figure.title)}</h3>'
                f'<p class="muted">{escape(figure.caption)}</p>'
                f'<div class="chart" id="{place}"></div></div>'
            )
        note = f'<p class="muted">{escape(notes[title])}</p>' if notes and title in notes else ""
        html.append(
            f'<section><h2>{escape(title)}</h2>{note}<div class="grid">{"".join(cards)}</div></section>'
        )
    # "<" must not appear: it could end the script element.
    return "".join(html), json.dumps(drawn).replace("<", "\\u003c")


def figure_sections(run: WholeRun) -> dict[str, list[Figure]]:
    """Return the figures by section."""
    sections: dict[str, list[Figure]] = {"Strength": []}
    for title, charts in chart_sections(run).items():
        sections[title] = [figure_of(chart) for chart in charts]
    if not run.is_program and run.ratings():
        sections["Strength"].append(_ratings_figure(run))
    if run.tuning is not None:
        sections = {title: [_by_iteration(run, one) for one in found] for title, found in sections.items()}
    return {title: figures for title, figures in sections.items() if figures}


def _by_iteration(run: WholeRun, figure: Figure) -> Figure:
    """Return a figure whose steps are iterations."""
    axis: Json = {"title": {"text": "iteration", "standoff": 4}}
    if run.step <= FEW_STEPS:
        axis["dtick"] = 1
    return replace(figure, layout={**figure.layout, "xaxis": axis})


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
    elif largest >= 1e3:
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


def _ratings_figure(run: WholeRun) -> Figure:
    """Return the latest ratings of the pool's best members, with two standard deviations."""
    ratings = run.ratings()
    best = ratings[:MAX_RATINGS][::-1]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.mu for one in best],
        "y": [plain(one.uid) for one in best],
        "error_x": {"type": "data", "array": [2 * one.sigma for one in best], "width": 3},
        "marker": {"color": COLOURS[0], "size": 8},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "TrueSkill rating"}},
        "yaxis": {"type": "category", "automargin": True},
        "hovermode": "closest",
        "showlegend": False,
        "height": max(300, 90 + 22 * len(best)),
    }
    caption = "Latest mean, plus and minus two standard deviations."
    if left_out := len(ratings) - len(best):
        caption += f" Only the best {len(best)} are shown; {left_out} more are left out."
    return Figure("Ratings of the pool", caption, [trace], layout)
