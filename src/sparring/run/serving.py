"""Who answers a run's model calls: engines that are told which weights to play with."""

from collections.abc import Collection, Mapping
from typing import Protocol

from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics


class Serving(Protocol):
    """Serves each policy by its name, and the adapter that its training produces by another."""

    results: dict[str, str]
    """The served name of the adapter that training produces, by policy: the average if any."""

    async def publish(self, saved: Saved) -> None:
        """Answer with these weights from now on."""

    async def freeze(self, uid: str, policy: str) -> str | None:
        """Keep a copy of what the training of a policy has produced by now; return its path.

        A relative path is below the run's directory; ``None`` is the untrained model.
        """

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """Serve exactly these copies, given as paths by uid.

        Those at the paths ``kept`` may have to be served later: their files stay.
        """

    async def publish_results(self) -> None:
        """Serve the newest ``results``, for an evaluation."""

    def check(self) -> None:
        """Raise the error of an engine that no further call can survive.

        Episodes treat such an error as their own failure.

        Raises:
            SparringError: there is such an error.
        """

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """Log the engines' statistics since the last call."""

    def reset(self) -> None:
        """Leave what an evaluation did out of the statistics."""

    def forget(self) -> None:
        """Forget cached contexts, as a restart would, so that a resumed run computes the same."""

    async def close(self) -> None:
        """Send no more calls."""
