"""View: what a stage trainer shows while it works."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from selfplay.core import Rollout
from selfplay.finetune.providers.job import Job
from selfplay.finetune.state import Stage


class View(Protocol):
    """Shows stages, rollouts and jobs, and keeps metrics."""

    def say(self, line: str) -> None:
        """Show a line."""

    def stage(self, stage: Stage, iteration: int) -> None:
        """Show which stage begins."""

    def progress(self, title: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Show a bar while the body runs, unless the title is empty; the function advances it by one."""

    def job(self, group: str, job: Job) -> None:
        """Show the state of a group's job."""

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Keep and show the statistics of an iteration."""

    def sampled(self, split: str, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Keep what is measured of the rollouts of an iteration; ``split`` is ``train`` or ``test``."""


class QuietView:
    """Shows nothing, and keeps the statistics in ``logged``, a pair of iteration and statistics each."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def say(self, line: str) -> None:
        """Show nothing."""

    def stage(self, stage: Stage, iteration: int) -> None:
        """Show nothing."""

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show nothing."""
        yield lambda: None

    def job(self, group: str, job: Job) -> None:
        """Show nothing."""

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Keep the statistics."""
        self.logged.append((iteration, dict(stats)))

    def sampled(self, split: str, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Keep nothing."""
