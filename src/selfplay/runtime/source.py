"""Source: where an update's records come from. The run trains on them and is blind to everything else."""

from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Group

from selfplay.config.settings import Config
from selfplay.core import TrainingRecord
from selfplay.replay.rollout_log import RolloutLog
from selfplay.runtime.progress import RunProgress
from selfplay.runtime.run_directory import RunDirectory
from selfplay.tracking.tracker import Tracker


@dataclass(frozen=True)
class SourceParts:
    """What a source works with. ``results`` names the adapter that training produces, by policy."""

    config: Config
    directory: RunDirectory
    tracker: Tracker
    rollout_log: RolloutLog
    results: dict[str, str]


class Source(Protocol):
    """Plays games or programs and gives the records of each update."""

    async def startup(self) -> None:
        """Called once before the run begins or goes on."""

    async def shutdown(self) -> None:
        """Called once when the run ends, however it does."""

    def begin(self) -> None:
        """Start a run from nothing."""

    async def collect(self, step: int, progress: RunProgress) -> dict[str, list[TrainingRecord]]:
        """Play for the update after ``step``; returns the records of each policy.

        Raises:
            SelfplayError: nothing trainable came of it.
        """

    async def learned(self, step: int) -> None:
        """Called after update ``step``, when the new weights are served."""

    def log(self) -> None:
        """Give the tracker what is known of this update's play."""

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Measure, write to the run's directory and return headline figures; ``full`` before and after."""

    def ending(self) -> Group | str:
        """Before and after, as a table."""

    def account_lines(self) -> list[str]:
        """What became of everything, in words that add up."""

    def next_command(self) -> str:
        """What is worth trying now."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a checkpoint, JSON-able."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
