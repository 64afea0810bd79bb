"""Source: produces the records of each update. The run trains on them and sees nothing else of the play."""

from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Group

from selfplay.config.settings import Config
from selfplay.core import TrainingRecord
from selfplay.record.tracker import Tracker
from selfplay.replay.rollout_log import RolloutLog
from selfplay.runtime.progress import RunProgress
from selfplay.runtime.run_directory import RunDirectory


@dataclass(frozen=True)
class SourceParts:
    """The parts of a run that a source uses; ``results`` maps a policy to the adapter that training gives."""

    config: Config
    directory: RunDirectory
    tracker: Tracker
    rollout_log: RolloutLog
    results: dict[str, str]


class Source(Protocol):
    """Plays games or programs and returns the records of each update."""

    async def startup(self) -> None:
        """Called once before the run starts or resumes."""

    async def shutdown(self) -> None:
        """Called once when the run ends, however it ends."""

    def begin(self) -> None:
        """Start a run from scratch."""

    async def collect(self, step: int, progress: RunProgress) -> dict[str, list[TrainingRecord]]:
        """Play for the update after ``step``; return the records of each policy.

        Raises:
            SelfplayError: the play gave no record to train on.
        """

    async def learned(self, step: int) -> None:
        """Called after update ``step``, once the new weights are served."""

    def log(self) -> None:
        """Log the metrics of this update's play."""

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Measure, write to the run's directory and return headline figures.

        ``full`` evaluations are those before the first update and after the last.
        """

    def ending(self) -> Group | str:
        """Return a table of the figures before and after."""

    def account_lines(self) -> list[str]:
        """Return lines that account for every game or episode."""

    def next_command(self) -> str:
        """Return a command that is worth trying after the run."""

    def tidy(self, oldest_step: int) -> None:
        """Delete files that only checkpoints before ``oldest_step`` needed; those checkpoints are gone."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must keep, as JSON-able data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
