"""Runs side by side: runs of one configuration become one entry, whose figures are those of all its runs."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.config.loading import flat_fields, load_config
from sparring.core import InputError
from sparring.core.confidence_intervals import Interval, interval_over_runs
from sparring.core.text import shell_command
from sparring.evaluation.figures import DRAWS, Figure, FigureName, Kind, kind_of
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource, read_to_end

SAME_RUN = ("seed", "run.directory", "ray.address", "model.threads")
"""Fields in which runs of one configuration may differ. The name of a run is not in its configuration."""
MOST_NAMES = 3

Values = dict[str, Any]


@dataclass(frozen=True)
class ComparedRun:
    """A run with all that it recorded."""

    name: str
    config: Config
    view: RunView

    @cached_property
    def fields(self) -> Values:
        """The configuration by dotted name, without the fields that may differ between runs of one entry."""
        flat = flat_fields(self.config.model_dump(mode="json"))
        return {name: value for name, value in flat.items() if name not in SAME_RUN}

    @property
    def last(self) -> int | None:
        """The update of the last evaluation."""
        return self.view.last_evaluation if self.view.figures else None

    def figure(self, name: FigureName, step: int | None) -> Figure | None:
        """Return a figure after an update, if it was measured then."""
        return None if step is None else self.view.figures.get(name, {}).get(step)


@dataclass(frozen=True)
class Summary:
    """A figure of an entry at one update: that of its run, or the mean over the runs that measured it."""

    figures: tuple[Figure, ...]

    @property
    def interval(self) -> Interval:
        """The 95% interval: within a single run that of its games, over several that of their mean.

        Runs that ended alike show no spread; then it reaches as far as the intervals of their games.
        """
        own = [figure.interval for figure in self.figures]
        if len(own) == 1:
            return own[0]
        low, mid, high = interval_over_runs([figure.value for figure in self.figures])
        if low == high:
            low, high = min(one.low for one in own), max(one.high for one in own)
        least = min(figure.bounds[0] for figure in self.figures)
        most = max(figure.bounds[1] for figure in self.figures)
        return Interval(max(low, least), mid, min(high, most))

    @property
    def kind(self) -> Kind:
        """The figures' kind."""
        return kind_of(self.figures)

    @property
    def is_exact(self) -> bool:
        """Whether the number has no interval: an exact measure of a single run."""
        return len(self.figures) == 1 and self.kind == "exact"


@dataclass(frozen=True)
class ComparedEntry:
    """The runs of one configuration."""

    runs: tuple[ComparedRun, ...]

    @property
    def label(self) -> str:
        """The names of the runs; of many, the first and how many more there are."""
        names = [run.name for run in self.runs]
        if len(names) <= MOST_NAMES:
            return ", ".join(names)
        return f"{names[0]} and {len(names) - 1} more"

    def last(self, name: FigureName) -> Summary | None:
        """Return a figure at the end: that of each run's last evaluation; ``None`` if no run has it."""
        found = [run.figure(name, run.view.last_measured(name)) for run in self.runs]
        figures = tuple(figure for figure in found if figure is not None)
        return Summary(figures) if figures else None

    def curve(self, name: FigureName) -> dict[int, Summary]:
        """Return a figure by update, for the updates at which every run of the entry has it."""
        curve = {}
        for step in sorted(self.runs[0].view.figures.get(name, {})):
            found = [run.figure(name, step) for run in self.runs]
            figures = tuple(figure for figure in found if figure is not None)
            if len(figures) == len(self.runs):
                curve[step] = Summary(figures)
        return curve


def read_entries(names: Sequence[str]) -> list[ComparedEntry]:
    """Read runs, given by name or path, and group those of one configuration, in the order of the names.

    A second run with the same seed is an entry of its own: it is no further evidence.

    Raises:
        InputError: there are fewer than two runs, or one is missing, damaged or named twice.
    """
    paths = [find_run(name) for name in names]
    if len(paths) < 2:
        fix = f"Name more, or look at it: {shell_command('report', names[0])}"
        raise InputError("RUN", "one run cannot be compared", fix)
    found = Counter(path.resolve() for path in paths)
    twice = [name for name, path in zip(names, paths, strict=True) if found[path.resolve()] > 1]
    if twice:
        raise InputError("RUN", f"{twice[0]} is named twice", "Name each run once")
    short = Counter(path.resolve().name for path in paths)
    entries: dict[tuple[str, int], list[ComparedRun]] = {}
    twins = Counter[tuple[str, int]]()
    for name, path in zip(names, paths, strict=True):
        own = path.resolve().name
        run = _read_run(own if short[own] == 1 else name, path)
        fields = json.dumps(run.fields, sort_keys=True)
        entries.setdefault((fields, twins[fields, run.config.seed]), []).append(run)
        twins[fields, run.config.seed] += 1
    return [ComparedEntry(tuple(runs)) for runs in entries.values()]


def differing_fields(entries: Sequence[ComparedEntry]) -> dict[str, list[Any]]:
    """Return the fields that differ between entries, each with the value of every entry or ``None``."""
    fields = [entry.runs[0].fields for entry in entries]
    names = dict.fromkeys(name for one in fields for name in one)
    values = {name: [one.get(name) for one in fields] for name in names}
    return {name: found for name, found in values.items() if any(one != found[0] for one in found)}


def figure_names(entries: Iterable[ComparedEntry]) -> dict[FigureName, str]:
    """Return the names of all figures, each with its text: with the environment only if there are several.

    Draws are left out where no run ever drew.
    """
    names = {
        name: None
        for entry in entries
        for run in entry.runs
        for name, series in run.view.figures.items()
        if name.measure != DRAWS or any(figure.value for figure in series.values())
    }
    alone = len({name.env_id for name in names if name.env_id}) <= 1
    return {name: name.name if alone else str(name) for name in names}


def _read_run(name: str, path: Path) -> ComparedRun:
    run = RunDirectory.open(path)
    view = read_to_end(RunDirectorySource(path))
    for damaged in view.damaged_evaluations:
        problem = "is not an evaluation, or is damaged"
        raise InputError(str(run.path / damaged), problem, "Evaluate again")
    return ComparedRun(name, load_config(str(run.config_file), {}), view)
