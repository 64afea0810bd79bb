"""The curves of a comparison: every figure of the evaluations and some metrics, a line for each entry."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay.commands.compare import Entry, figure_names
from selfplay.core import InputError
from selfplay.evaluation.intervals import Interval, interval_over_runs
from selfplay.tracking.report_lines import Chart, banded_curve, curve, share_axis, thin
from selfplay.tracking.report_summary import Rate
from selfplay.tracking.sinks import read_metrics

METRICS = (
    ("Probability on legal answers", "learner/", "legal_mass"),
    ("Entropy of the answers, nats per token", "answers/", "entropy_estimate"),
    ("Tokens of an answer", "answers/", "tokens"),
    ("Share of answers cut at the token limit", "answers/", "cut_share"),
    ("Share of answers without an advantage", "answers/", "zero_advantage_share"),
    ("Gradient norm", "learner/", "grad_norm"),
    ("Log-probability mismatch, nats per token", "learner/", "mismatch"),
    ("Mean reward of a role", "program/reward/", ""),
    ("Games per second", "time/", "games_per_second"),
)
"""The charts of metrics, with how the metrics' names begin and end; a policy or a role may be in between."""
ALL_RUNS = "The line of several runs is their mean, at the updates that all of them have."
BANDS = f"Bands are 95% intervals: of one run over its games, of several over the runs. {ALL_RUNS}"
RUNS_BANDS = f"Bands are 95% intervals over the runs of an entry; one run has none. {ALL_RUNS}"

Points = Mapping[int, Interval]
Series = dict[str, dict[int, float]]
"""Values of metrics by name and step."""


@dataclass(frozen=True)
class Section:
    """Charts under a title, and a note on how to read them."""

    title: str
    note: str
    charts: list[Chart]


def chart_sections(entries: Sequence[Entry]) -> list[Section]:
    """Return the charts by section, without sections that have none.

    Raises:
        InputError: the metrics of a run are damaged.
    """
    metrics = [[_metrics_of(run.path / "metrics.jsonl") for run in entry.runs] for entry in entries]
    sections = [
        Section("Evaluations", BANDS, list(_figure_charts(entries))),
        Section("Training", RUNS_BANDS, list(_metric_charts(entries, metrics))),
    ]
    return [section for section in sections if section.charts]


def _figure_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    for name, text in figure_names(entries).items():
        curves = [entry.curve(name) for entry in entries]
        kinds = {one.kind for points in curves for one in points.values()}
        if max(map(len, curves)) < 2:
            continue
        chart = Chart(_sentence(text), "", layout=share_axis() if kinds == {"share"} else {})
        for place, (entry, points) in enumerate(zip(entries, curves, strict=True)):
            banded = not all(one.is_exact for one in points.values())
            intervals = {step: one.interval for step, one in points.items()}
            chart.traces += _line(entry.label, intervals, place, banded=banded)
        yield chart


def _metric_charts(entries: Sequence[Entry], metrics: Sequence[Sequence[Series]]) -> Iterator[Chart]:
    names = sorted({name for runs in metrics for series in runs for name in series})
    for title, beginning, ending in METRICS:
        for name in names:
            if not name.startswith(beginning) or not name.endswith(ending):
                continue
            whose = name.removeprefix(beginning).removesuffix(ending).strip("/")
            chart = Chart(f"{title}: {whose}" if whose else title, name)
            for place, (entry, runs) in enumerate(zip(entries, metrics, strict=True)):
                points = _over_runs([series.get(name, {}) for series in runs])
                chart.traces += _line(entry.label, points, place, banded=len(runs) > 1, markers=False)
            yield chart


def _line(
    label: str, points: Points, place: int, *, banded: bool, markers: bool = True
) -> list[dict[str, Any]]:
    """Return a line with its band; nothing without points."""
    if not points:
        return []
    shown = thin(list(points.items()))
    steps = [float(step) for step, _ in shown]
    if not banded:
        return [curve(label, (steps, [interval.mid for _, interval in shown]), place, markers=markers)]
    return banded_curve(label, steps, [Rate(*interval) for _, interval in shown], place, markers=markers)


def _over_runs(runs: Sequence[Mapping[int, float]]) -> dict[int, Interval]:
    """Return the mean over runs with its interval, at the steps that all runs have; one run has no width."""
    common = [step for step in runs[0] if all(step in run for run in runs)]
    values = {step: [run[step] for run in runs] for step in common}
    if len(runs) == 1:
        return {step: Interval(one, one, one) for step, (one,) in values.items()}
    return {step: interval_over_runs(found) for step, found in values.items()}


def _metrics_of(path: Path) -> Series:
    """Return the metrics of a run that are plotted."""
    series: Series = {}
    try:
        lines = read_metrics(path)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Make it readable") from error
    for line in lines:
        step = line.get("step")
        for name, value in line.items():
            if isinstance(step, int) and isinstance(value, int | float) and _is_plotted(name):
                series.setdefault(name, {})[step] = float(value)
    return series


def _is_plotted(name: str) -> bool:
    return any(name.startswith(beginning) and name.endswith(ending) for _, beginning, ending in METRICS)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
