"""What is played: a source of the batches on which a run trains.

Sources: ``GameSource`` (games) and ``ProgramSource`` (programs), each in one process and on a cluster.
``single_process.build_trainer`` and ``cluster.run.ClusterRun`` choose.
"""

from typing import Any, Protocol

from sparring.run.learners import Saved, UpdateBatch
from sparring.run.progress import RunProgress


class Source(Protocol):
    """Plays games or a program; the loop sees nothing else of the play."""

    overlaps: bool
    """Whether play goes on while the learners learn."""

    async def startup(self) -> None:
        """Called once before the run starts or resumes."""

    async def shutdown(self) -> None:
        """Called once when the run ends, however it ends."""

    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue after ``saved`` from :meth:`state` and delete what was written later.

        A run that starts from scratch has no state.

        Raises:
            InputError: the state does not fit the configuration; nothing is deleted.
        """

    async def play(self, saved: Saved, progress: RunProgress) -> UpdateBatch:
        """Play for the update after ``saved``.

        Raises:
            SparringError: the play gave no record to train on.
        """

    async def publish(self, saved: Saved) -> None:
        """Play with these weights from now on, and let copies of them join the pool if that is due.

        A repeated call changes nothing.
        """

    async def log(self, play_seconds: float) -> None:
        """Log the metrics of this update's play, which took so many seconds."""

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Measure the policies, write to the run's directory and return headline figures.

        ``full`` evaluations are those before the first update and after the last.
        """

    async def kept(self, oldest_step: int) -> None:
        """Called when a checkpoint is written; ``oldest_step`` is the oldest that a run can resume from."""

    async def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint must keep, as JSON-able data."""

    async def accounts(self) -> dict[str, int]:
        """Return the counts of every game or episode, by what became of it."""
