"""The comparison of runs as one HTML page that looks like a run's report and needs no network."""

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from selfplay.commands.compare import Entry, Summary, differing_fields, figure_names
from selfplay.commands.compare_curves import Section, chart_sections
from selfplay.commands.compare_table import counts_text, notes, steps_text, summary_text, value_text
from selfplay.tracking.report import content_policy
from selfplay.tracking.report_lines import COLOURS


def comparison_html(entries: Sequence[Entry]) -> str:
    """Return the whole page. All text of runs is escaped, and the page's policy allows only its own scripts.

    Raises:
        InputError: the metrics of a run are damaged.
    """
    charts, figures = _charts_html(chart_sections(entries))
    plotly = _one_kind_of_line_end(get_plotlyjs()) if figures != "[]" else ""
    script = _one_kind_of_line_end(_packaged("report.js"))
    runs = sum(len(entry.runs) for entry in entries)
    parts = {
        "content_policy": escape(content_policy(plotly, script)),
        "title": "Comparison of runs",
        "subtitle": escape(f"{runs} runs, {_counted_entries(entries)}"),
        "headline": _entries_html(entries) + _differences_html(entries) + _figures_html(entries),
        "charts": charts,
        "figures": figures,
        "plotly": plotly,
        "script": script,
    }
    unused = ("origin", "empty", "tiles", "warnings", "evaluated", "policy", "games", "config")
    return Template(_packaged("report.html")).substitute(dict.fromkeys(unused, "") | parts)


def _counted_entries(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return "all of one configuration"
    return f"{len(entries)} configurations"


def _entries_html(entries: Sequence[Entry]) -> str:
    rows = []
    for place, entry in enumerate(entries):
        config, names = entry.runs[0].config, ", ".join(run.name for run in entry.runs)
        trains_on = config.program.type if config.program else ", ".join(env.id for env in config.envs)
        cells = (names, str(len(entry.runs)), config.model.name, trains_on, f"update {steps_text(entry)}")
        rows.append(f"<tr><td>{_key(place)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    heads = ("", "Runs", "Number", "Model", "Trains on", "Last evaluation")
    return _table_html("Entries", heads, rows)


def _differences_html(entries: Sequence[Entry]) -> str:
    different = differing_fields(entries)
    rows = [
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(value_text(one))}</td>' for one in values)}</tr>"
        for name, values in different.items()
    ]
    heads = ("Field", *(entry.label for entry in entries))
    return _table_html("What differs in the configuration", heads, rows) if rows else ""


def _figures_html(entries: Sequence[Entry]) -> str:
    rows = []
    for name, text in figure_names(entries).items():
        rows.append(f'<tr class="group"><th colspan="4">{escape(text)}</th></tr>')
        found = {place: entry.last(name) for place, entry in enumerate(entries)}
        present = {place: summary for place, summary in found.items() if summary is not None}
        low, high = _ends(present.values())
        for place, summary in present.items():
            rows.append(
                f"<tr><td>{_key(place)} {escape(entries[place].label)}</td>"
                f"<td>{escape(counts_text(summary))}</td><td>{escape(summary_text(summary))}</td>"
                f'<td class="range">{_bar(summary, low, high, place)}</td></tr>'
            )
        form = ".0%" if all(one.kind == "share" for one in present.values()) else ".3g"
        ends = f"<span>{low:{form}}</span><span>{high:{form}}</span>"
        rows.append(f'<tr><td colspan="3"></td><td><div class="range-ends">{ends}</div></td></tr>')
    if not rows:
        return '<p class="card">Nothing was evaluated.</p>'
    said = "".join(f'<p class="muted">{escape(note)}</p>' for note in notes(entries))
    return _table_html("Last evaluations", ("", "Measured in", "Value", ""), rows, said)


def _table_html(title: str, heads: Sequence[str], rows: Sequence[str], below: str = "") -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    return (
        f'<section><h2>{escape(title)}</h2><div class="card scroll"><table class="headline">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{below}</div></section>"
    )


def _ends(summaries: Iterable[Summary]) -> tuple[float, float]:
    """Return the range of a figure's bars: all that is possible, or as much of it as the intervals need."""
    found = list(summaries)
    least, most = found[0].figures[0].bounds
    low = min(one.interval.low for one in found) if math.isinf(least) else least
    high = max(one.interval.high for one in found) if math.isinf(most) else most
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _bar(summary: Summary, low: float, high: float, place: int) -> str:
    """Return an interval on a track from ``low`` to ``high``."""
    left, middle, right = (100 * (end - low) / (high - low) for end in summary.interval)
    colour = COLOURS[place % len(COLOURS)]
    return (
        f'<div class="track"><i class="band" style="left:{left:.2f}%;width:{right - left:.2f}%;'
        f'background:{colour}"></i><i class="dot" style="left:{middle:.2f}%;background:{colour}"></i></div>'
    )


def _key(place: int) -> str:
    return f'<span class="key" style="background:{COLOURS[place % len(COLOURS)]}"></span>'


def _charts_html(sections: Sequence[Section]) -> tuple[str, str]:
    """Return the sections of charts as HTML, and the JSON list of figures for the page's script."""
    html: list[str] = []
    figures: list[dict[str, Any]] = []
    for section in sections:
        cards = []
        for chart in section.charts:
            chart_id = f"chart-{len(figures)}"
            figures.append({"id": chart_id, "traces": chart.traces, "layout": chart.layout})
            cards.append(
                f'<div class="card"><h3>{escape(chart.title)}</h3>'
                f'<p class="muted">{escape(chart.caption)}</p>'
                f'<div class="chart" id="{chart_id}"></div></div>'
            )
        html.append(
            f'<section><h2>{escape(section.title)}</h2><p class="muted">{escape(section.note)}</p>'
            f'<div class="grid">{"".join(cards)}</div></section>'
        )
    # "<" must not appear: it could end the script element.
    return "".join(html), json.dumps(figures).replace("<", "\\u003c")


def _packaged(name: str) -> str:
    return files("selfplay.tracking").joinpath(name).read_text(encoding="utf-8")


def _one_kind_of_line_end(script: str) -> str:
    """Return the script with ``\\n`` as its only line end, because a browser hashes it in that form."""
    return script.replace("\r\n", "\n").replace("\r", "\n")
