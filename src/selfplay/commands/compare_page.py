"""The comparison of runs as one HTML page that looks like a run's report and needs no network."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from selfplay.commands.compare import Entry, Summary, differing_fields, figure_names
from selfplay.commands.compare_curves import compared_sections, notes_of
from selfplay.commands.compare_table import counts_text, notes, steps_text, summary_text, value_text
from selfplay.read.charts import COLOURS, Chart
from selfplay.report.page import page_html
from selfplay.report.plotly import charts_html, figure_of


def comparison_html(entries: Sequence[Entry]) -> str:
    """Return the whole page. All text of runs is escaped, and the page's policy allows only its own scripts.

    Raises:
        InputError: the metrics of a run are damaged.
    """
    sections = compared_sections(entries)
    drawn = {title: [figure_of(chart) for chart in charts] for title, charts in sections.items()}
    last = max((step for charts in sections.values() for one in charts for step in _steps(one)), default=0)
    charts, figures = charts_html(drawn, int(last), notes_of(sections))
    runs = sum(len(entry.runs) for entry in entries)
    return page_html(
        figures,
        title="Comparison of runs",
        subtitle=escape(f"{runs} runs, {_counted_entries(entries)}"),
        headline=_entries_html(entries) + _differences_html(entries) + _figures_html(entries),
        charts=charts,
    )


def _steps(chart: Chart) -> Iterator[float]:
    return (step for line in chart.lines for step in line.steps)


def _counted_entries(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return "all of one configuration"
    return f"{len(entries)} configurations"


def _entries_html(entries: Sequence[Entry]) -> str:
    rows = []
    for place, entry in enumerate(entries):
        config, names = entry.runs[0].config, ", ".join(run.name for run in entry.runs)
        trains_on = ", ".join(config.play.names)
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
