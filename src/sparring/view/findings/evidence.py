"""RunEvidence: what the diagnoses look at, a run's first and newest updates and what these played."""

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from sparring.view.findings.played import HUGE, RECENT, PlayedGames
from sparring.view.run_view import RunView


@dataclass(frozen=True)
class Window:
    """The metrics of some updates in a row, one dictionary each, oldest first."""

    lines: list[dict[str, float]] = field(default_factory=list)

    @property
    def updates(self) -> tuple[int, int] | None:
        """The first and the last update; ``None`` without any."""
        return (int(self.lines[0]["step"]), int(self.lines[-1]["step"])) if self.lines else None

    def median(self, name: str) -> float | None:
        """Return the median of a metric over the updates that have it; ``None`` without any."""
        found = [line[name] for line in self.lines if name in line]
        return median(found) if found else None

    def medians(self, prefix: str, ending: str = "") -> dict[str, float]:
        """Return the medians of the metrics with a prefix and an ending, by the rest of their names."""
        names = {name for line in self.lines for name in line}
        named = sorted(name for name in names if name.startswith(prefix) and name.endswith(ending))
        found = {name: self.median(name) for name in named}
        return {
            name.removeprefix(prefix).removesuffix(ending): value
            for name, value in found.items()
            if value is not None
        }

    def last(self, prefix: str, ending: str = "") -> dict[str, float]:
        """Return the last of each such metric: what a metric is that is itself a mean over recent games."""
        return Window(self.lines[-1:]).medians(prefix, ending)

    def of_policies(self, measure: str) -> dict[str, float]:
        """Return the median of a learner's measure by policy; the name of an only one is empty."""
        found = self.medians("learner/", measure)
        return {name.rstrip("/"): value for name, value in found.items() if not name or name[-1] == "/"}


@dataclass(frozen=True)
class RunEvidence:
    """A run, and what its newest updates played, if that was read."""

    run: RunView
    played: PlayedGames = field(default_factory=PlayedGames)

    @cached_property
    def recent(self) -> Window:
        """The newest updates: the second half of a short run, at most ``RECENT``."""
        steps = self._steps
        return self._window(steps[-min(RECENT, (len(steps) + 1) // 2) :])

    @cached_property
    def beginning(self) -> Window:
        """As many of the first updates, or one fewer."""
        steps = self._steps
        return self._window(steps[: min(RECENT, len(steps) // 2)])

    @property
    def _steps(self) -> list[float]:
        return self.run.metric("step").steps

    def _window(self, steps: list[float]) -> Window:
        lines: dict[float, dict[str, float]] = {step: {"step": step} for step in steps}
        if steps:
            for name, one in self.run.series.items():
                place = bisect_left(one.steps, steps[0])
                for step, value in zip(one.steps[place:], one.values[place:], strict=True):
                    if step > steps[-1]:
                        break
                    if step in lines and abs(value) < HUGE:
                        lines[step][name] = value
        return Window(list(lines.values()))
