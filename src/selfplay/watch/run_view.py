"""RunView: everything to be shown of a run at one moment, independent of the source."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import msgspec

from selfplay.read.run_data import Evaluation, seconds_between
from selfplay.read.warnings import RunWarning, unplayable_warnings, warnings_of
from selfplay.watch.last_game import ReadableGame

POOL = "model-pool/"
RECENT_STEPS = 20
"""The number of steps from which the remaining time is estimated."""


@dataclass(frozen=True)
class Series:
    """A metric by step, thinned if it is long."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rating:
    """A model's strength: mean and standard deviation in TrueSkill's units, and games if known."""

    uid: str
    mu: float
    sigma: float
    games: int | None = None


class Meeting(msgspec.Struct, frozen=True):
    """One model's games against another; the games that it neither won nor drew are losses."""

    games: int = 0
    wins: int = 0
    draws: int = 0

    @property
    def score(self) -> float:
        """Wins plus half of the draws, per game."""
        return (self.wins + self.draws / 2) / self.games if self.games else 0.0


@dataclass(frozen=True)
class RunView:
    """A run as a screen shows it. Nobody changes one that was handed out.

    Args:
        name: the run's name.
        config: the run's configuration; empty if it is unknown.
        series: metrics by name, without those of the model pool.
        latest: the latest value of every metric, including ``step`` and ``wall_time`` (seconds since 1970).
        evaluations: the evaluations, by step.
        meetings: games by uid and other uid, from both sides.
        meetings_step: the step after which the meetings were counted.
        game: the last finished game.
        share_read: the share of the recorded data that has been read; below 1, more can be read at once.
        damaged_lines: the number of lines of metrics that could not be read.
        trouble: why nothing could be read this time; empty if nothing is wrong.
        actors: the current load of each actor of a cluster, by name; see ``TrackerService.heartbeat``.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    meetings: dict[str, dict[str, Meeting]] = field(default_factory=dict)
    meetings_step: int | None = None
    game: ReadableGame | None = None
    share_read: float = 1.0
    damaged_lines: int = 0
    trouble: str = ""
    actors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last recorded step; 0 before the first."""
        return int(self.latest.get("step", 0))

    @property
    def total_steps(self) -> int | None:
        """The number of steps that the run is configured for; ``None`` if unknown."""
        steps: int | None = self.setting("learning", "steps", int)
        return steps

    @property
    def is_finished(self) -> bool:
        """Whether the last step has been recorded. Evaluation and saving may still follow."""
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def is_program(self) -> bool:
        """Whether the run trains on a program instead of games."""
        return "program" in self.config

    @property
    def unit(self) -> str:
        """The noun for the run's games, in the plural."""
        return "episodes" if self.is_program else "games"

    def setting(self, section: str, name: str, kind: type) -> Any:
        """Return a value of the configuration; ``None`` if it is missing or of another type."""
        found = self.config.get(section)
        value = found.get(name) if isinstance(found, dict) else None
        return value if isinstance(value, kind) else None

    def plays(self) -> list[str]:
        """Return the ids of the environments, or the name of the program."""
        if self.is_program:
            return [str(self.setting("program", "path", str) or self.setting("program", "type", str))]
        envs = self.config.get("envs")
        return [str(env.get("id")) for env in envs if isinstance(env, dict)] if isinstance(envs, list) else []

    def ratings(self) -> list[Rating]:
        """Return the latest ratings, best first; empty if no model has been rated."""
        found: dict[str, dict[str, float]] = {}
        for name, value in self.latest.items():
            if name.startswith(POOL) and "/" in (rest := name.removeprefix(POOL)):
                uid, measure = rest.rsplit("/", 1)
                found.setdefault(uid, {})[measure] = value
        ratings = [
            Rating(uid, one["mu"], one["sigma"], int(one["games"]) if "games" in one else None)
            for uid, one in found.items()
            if {"mu", "sigma"} <= one.keys()
        ]
        if len({(one.mu, one.sigma) for one in ratings}) < 2:
            return []
        return sorted(ratings, key=lambda one: (-one.mu, one.uid))

    def seconds(self) -> float:
        """Return the wall-clock time from the first evaluation to the last metrics; 0 without metrics."""
        times = self.series.get("wall_time", Series())
        first = {
            name: one.values[0]
            for name, one in self.series.items()
            if one.steps and one.steps[:1] == times.steps[:1]
        }
        return seconds_between(first, self.latest) if first else 0.0

    def step_seconds(self) -> list[float]:
        """Return the wall-clock seconds of the last steps, oldest first, without pauses before a resume."""
        times = self.series.get("wall_time", Series()).values[-RECENT_STEPS - 1 :]
        spans = [later - earlier for earlier, later in pairwise(times)]
        usual = median(spans) if spans else 0.0
        return [span for span in spans if 0 <= span <= 20 * usual]

    def seconds_left(self) -> float | None:
        """Return the remaining seconds at the latest speed; ``None`` if they are unknown."""
        spans = self.step_seconds()
        if self.total_steps is None or not spans:
            return None
        return max(0, self.total_steps - self.step) * sum(spans) / len(spans)

    def of_last_step(self) -> dict[str, float]:
        """Return the metrics of the last step, without those of the model pool."""
        return {
            name: one.values[-1]
            for name, one in self.series.items()
            if one.steps and one.steps[-1] == self.step
        }

    def warnings(self) -> list[RunWarning]:
        """Return the warnings about the last step, and about the last NashConv of each environment."""
        return [*warnings_of(self.of_last_step()), *unplayable_warnings(self.evaluations)]

    def phases(self) -> dict[str, float]:
        """Return the seconds of the last step by phase, and the rest if it is known."""
        names = {"evaluation": "evaluate"} | {name: name for name in ("play", "wait", "learn", "save")}
        metrics = self.of_last_step()
        found = {
            label: metrics[f"time/{name}_seconds"]
            for name, label in names.items()
            if f"time/{name}_seconds" in metrics
        }
        spans = self.step_seconds()
        if found and spans:
            found["the rest"] = max(0.0, spans[-1] - sum(found.values()))
        return found


class Source(Protocol):
    """A source of views: a run directory or a live cluster."""

    def read(self) -> RunView:
        """Read what is new, with little work, and return the current view.

        The method is called about every second from a thread, never concurrently, and again at once while
        ``share_read`` is below 1. It raises nothing; failures go into ``trouble``.
        """
