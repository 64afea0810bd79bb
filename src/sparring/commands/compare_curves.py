"""The charts of a comparison: figures of the evaluations and a report's charts, a line for each entry."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sparring.commands.compare import ComparedEntry, figure_names
from sparring.core.confidence_intervals import Interval, interval_over_runs
from sparring.view.chart_list import chart_sections
from sparring.view.charts import WHOLE, Chart, Line, banded_line
from sparring.view.run_view import RunView

ALL_RUNS = "The line of several runs is their mean, at the updates that all of them have."
BANDS = f"Bands are 95% intervals: of one run over its games, of several over the runs. {ALL_RUNS}"
RUNS_BANDS = f"Bands are 95% intervals over the runs of an entry; one run has none. {ALL_RUNS}"
EVALUATIONS = "Evaluations"
OF_EVALUATIONS = "Strength"
"""The section of a report that the comparison of all figures replaces."""

Place = tuple[str, str, str]
"""A line in a run's report: its section, its chart's title and its name."""


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
