"""View: what a stage trainer shows while it works."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sparring.finetune.providers import Job
from sparring.finetune.run_files import Stage


class View:
    """Shows nothing, and keeps the statistics in ``logged``, a pair of iteration and statistics each."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def say(self, line: str) -> None:
        """Show a line."""

    def stage(self, stage: Stage, iteration: int) -> None:
        """Show which stage begins."""

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a bar while the body runs, unless the title is empty; the function advances it by one."""
        yield lambda: None

    def job(self, group: str, job: Job, progress: str) -> None:
        """Show a group's job, and the last line that the provider says of it."""

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Show the statistics of an iteration."""
        self.logged.append((iteration, dict(stats)))
