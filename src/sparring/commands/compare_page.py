"""The comparison of runs in the terminal and as a page: entries, differences, final figures and curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sparring.commands.compare import ComparedEntry, Summary, differing_fields, figure_names
from sparring.core.confidence_intervals import Interval, interval_over_runs
from sparring.core.text import counted
from sparring.evaluation.results import UNPLAYABLE_NOTE
from sparring.view.chart_list import chart_sections
from sparring.view.charts import COLOURS, WHOLE, Chart, Line, banded_line
from sparring.view.report.html import Page
from sparring.view.report.plotly import figure_of
from sparring.view.run_view import RunView
from sparring.view.tables import Bar, Cell, Row, Table, ends_of, figure_cell
from sparring.view.watch.text import table_text

OVER = (
    "Several runs: their mean with Student's 95% interval, from the spread between runs. It says where the "
    "mean over many seeds may lie. Where all runs ended alike, it is that of their games."
)
WITHIN = (
    "One run: a 95% interval over its games or items. It says how exactly this run was measured; another "
    "seed may end elsewhere."
)
NOTHING = "Nothing was evaluated."
MOST_FIELDS = 20
"""So many fields that differ are listed in the terminal; the page has all."""
FIELDS = "What differs in the configuration"
ALL_RUNS = "The line of several runs is their mean, at the updates that all of them have."
BANDS = f"Bands are 95% intervals: of one run over its games, of several over the runs. {ALL_RUNS}"
RUNS_BANDS = f"Bands are 95% intervals over the runs of an entry; one run has none. {ALL_RUNS}"
EVALUATIONS = "Evaluations"
OF_EVALUATIONS = "Strength"
"""The section of a report that the comparison of all figures replaces."""

Place = tuple[str, str, str]
"""A line in a run's report: its section, its chart's title and its name."""


def comparison_text(entries: Sequence[ComparedEntry]) -> Group:
    """Return the tables of a comparison, for a terminal."""
    fields = _fields_table(entries, most=MOST_FIELDS)
    parts: list[RenderableType] = [table_text(_entries_table(entries))]
    parts += [Text(f"\n{FIELDS}", "bold"), table_text(fields)] if fields.groups else []
    figures = _figures_table(entries)
    if not figures.groups:
        return Group(*parts, Text(f"\n{NOTHING}"))
    return Group(*parts, Text("\nLast evaluations", "bold"), table_text(figures))


def comparison_html(entries: Sequence[ComparedEntry]) -> str:
    """Return the comparison as a page that needs no network. All text of runs is escaped."""
    sections = compared_sections(entries)
    lines = (line for charts in sections.values() for chart in charts for line in chart.lines)
    last = max((line.steps[-1] for line in lines), default=0)
    runs = sum(len(entry.runs) for entry in entries)
    several = f"{len(entries)} configurations" if len(entries) > 1 else "all of one configuration"
    page = Page("Comparison of runs", escape(f"{runs} runs, {several}"), last_step=int(last))
    fields, figures = _fields_table(entries), _figures_table(entries)
    page.table("Entries", _entries_table(entries))
    page.table(FIELDS, fields if fields.groups else None)
    if figures.groups:
        page.table("Last evaluations", figures)
    else:
        page.add(f'<p class="card">{NOTHING}</p>')
    for title, charts in sections.items():
        page.charts(title, list(map(figure_of, charts)), BANDS if title == EVALUATIONS else RUNS_BANDS)
    return page.html()


def _entries_table(entries: Sequence[ComparedEntry]) -> Table:
    rows: list[Row] = [
        [
            _named(entries, place),
            str(len(entry.runs)),
            f"update {_steps_text(entry)}",
            entry.runs[0].config.model.name,
            ", ".join(entry.runs[0].config.play.names),
        ]
        for place, entry in enumerate(entries)
    ]
    return Table(("Entry", "Runs", "Last evaluation", "Model", "Trains on"), [("", "", rows)])


def _fields_table(entries: Sequence[ComparedEntry], most: int | None = None) -> Table:
    """Return the fields that differ with the value of every entry, those that all entries have first."""
    found = sorted(differing_fields(entries).items(), key=lambda one: None in one[1])
    groups: list[tuple[str, str, list[Row]]] = [
        (name, "", [[_named(entries, place), _value_text(value)] for place, value in enumerate(values)])
        for name, values in found[:most]
    ]
    more = len(found) - len(groups)
    return Table(("", ""), groups, [f"and {more} more fields, which the page lists"] * (more > 0))


def _figures_table(entries: Sequence[ComparedEntry]) -> Table:
    names = figure_names(entries)
    found = {text: [entry.last(name) for entry in entries] for name, text in names.items()}
    groups = [(text, "", [*_figure_rows(entries, values)]) for text, values in found.items()]
    has_shares = any(one is not None and one.kind == "share" for values in found.values() for one in values)
    heads = ("", "Value", "Measured in", "")
    return Table(heads, [one for one in groups if one[2]], list(_notes(entries)), has_shares)


def _figure_rows(entries: Sequence[ComparedEntry], found: Sequence[Summary | None]) -> Iterator[Row]:
    present = [one for one in found if one is not None]
    if not present:
        return
    low, high = ends_of([one.interval for one in present], present[0].figures[0].bounds)
    for place, one in enumerate(found):
        if one is not None:
            playable = all(figure.is_playable for figure in one.figures)
            value = figure_cell(one.interval, one.kind, exactly=one.is_exact, is_playable=playable)
            bar = Bar(one.interval, low, high, COLOURS[place % len(COLOURS)])
            yield [_named(entries, place), value, _counts_text(one), Cell(bars=(bar,))]


def _named(entries: Sequence[ComparedEntry], place: int) -> Cell:
    return Cell(entries[place].label, key=COLOURS[place % len(COLOURS)])


def _notes(entries: Sequence[ComparedEntry]) -> Iterator[str]:
    """Yield what the intervals of these entries mean, and what else a reader must know."""
    sizes = {len(entry.runs) > 1 for entry in entries}
    if True in sizes:
        yield OVER
    if False in sizes:
        yield WITHIN
    for entry in entries:
        if len({run.last for run in entry.runs}) > 1:
            steps = _steps_text(entry)
            yield f"{entry.label}: its runs were last evaluated at different updates, {steps}."
    found = [entry.last(name) for entry in entries for name in figure_names(entries)]
    if not all(figure.is_playable for one in found if one is not None for figure in one.figures):
        yield UNPLAYABLE_NOTE


def _counts_text(summary: Summary) -> str:
    """Return in how many runs a figure was measured, and on how many games in all."""
    text, count = counted(len(summary.figures), "run"), sum(figure.count for figure in summary.figures)
    return f"{text}, {count:,} {summary.figures[0].counted}" if count else text


def _steps_text(entry: ComparedEntry) -> str:
    """Return the updates of the runs' last evaluations."""
    steps = sorted({run.last for run in entry.runs if run.last is not None})
    if not steps:
        return "none"
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def _value_text(value: Any) -> str:
    """Return the value of a field of the configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return "not set" if value is None else str(value)


def compared_sections(entries: Sequence[ComparedEntry]) -> dict[str, list[Chart]]:
    """Return the charts by section, without sections that have none."""
    found = {EVALUATIONS: list(_evaluation_charts(entries)), **_report_charts(entries)}
    return {title: charts for title, charts in found.items() if charts}


def _evaluation_charts(entries: Sequence[ComparedEntry]) -> Iterator[Chart]:
    for name, text in figure_names(entries).items():
        curves = [entry.curve(name) for entry in entries]
        if max(map(len, curves)) < 2:
            continue
        lines = []
        for colour, (entry, points) in enumerate(zip(entries, curves, strict=True)):
            banded = not all(one.is_exact for one in points.values())
            intervals = {float(step): one.interval for step, one in points.items()}
            lines += _line(entry.label, intervals, colour, banded=banded)
        title = text[:1].upper() + text[1:]
        if {one.kind for points in curves for one in points.values()} == {"share"}:
            yield Chart(title, lines, axis="share", bounds=WHOLE)
        else:
            yield Chart(title, lines)


def _report_charts(entries: Sequence[ComparedEntry]) -> dict[str, list[Chart]]:
    """Return a chart for each line of the runs' reports."""
    reports = [[_report_lines(run.view) for run in entry.runs] for entry in entries]
    first: dict[Place, Chart] = {}
    for found in (report for runs in reports for report in runs):
        first = {place: chart for place, (chart, _) in found.items()} | first
    sections: dict[str, list[Chart]] = {}
    for place, chart in first.items():
        section, title, name = place
        lines = []
        for colour, (entry, runs) in enumerate(zip(entries, reports, strict=True)):
            points = _over_runs([_points(report[place][1]) if place in report else {} for report in runs])
            lines += _line(entry.label, points, colour, banded=len(runs) > 1)
        if lines:
            titled = replace(chart, title=f"{title}: {name}" if name else title, lines=lines, stacked=False)
            sections.setdefault(section, []).append(titled)
    return sections


def _report_lines(run: RunView) -> dict[Place, tuple[Chart, Line]]:
    return {
        (section, chart.title, line.name): (chart, line)
        for section, charts in chart_sections(run).items()
        if section != OF_EVALUATIONS
        for chart in charts
        for line in chart.lines
    }


def _points(line: Line) -> dict[float, float]:
    return dict(zip(line.steps, line.values, strict=True))


def _line(label: str, points: Mapping[float, Interval], colour: int, *, banded: bool) -> list[Line]:
    """Return a line, with its band if it has one; nothing without points."""
    if not points:
        return []
    line = replace(banded_line(label, points), colour=colour)
    return [line if banded else replace(line, low=[], high=[])]


def _over_runs(runs: Sequence[Mapping[float, float]]) -> dict[float, Interval]:
    """Return the mean over runs with its interval, at the steps that all runs have; one run has no width."""
    common = [step for step in runs[0] if all(step in run for run in runs)]
    values = {step: [run[step] for run in runs] for step in common}
    if len(runs) == 1:
        return {step: Interval(one, one, one) for step, (one,) in values.items()}
    return {step: interval_over_runs(found) for step, found in values.items()}
