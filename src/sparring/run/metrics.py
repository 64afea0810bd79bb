"""The metrics of a run: where its loop logs figures, and which lines are already written.

``LocalMetrics`` writes them in this process, ``RemoteMetrics`` of the cluster in an actor.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from sparring.collection.sinks import JsonlSink, Metrics
from sparring.collection.tracker import Tracker


class RunMetrics(Protocol):
    """Figures by name, written as one line after each update."""

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Log exact values; the last value before a flush is written."""

    def add(self, values: Mapping[str, float]) -> None:
        """Log values that are summed until the next flush, such as seconds."""

    async def flush(self, step: int) -> Metrics:
        """Write the line of ``step`` and return it. A step that has its line gets no second one."""

    async def resume(self, step: int, state: dict[str, Any]) -> bool:
        """Continue after update ``step`` from :meth:`state_dict`, ``{}`` from the beginning.

        Lines of later steps are deleted. Returns whether the line of ``step`` is written.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-able data."""

    def close(self) -> None:
        """Close the files or connections."""


class LocalMetrics:
    """See :class:`RunMetrics`: a tracker of this process, whose first sink writes ``metrics.jsonl``."""

    def __init__(self, tracker: Tracker, lines: JsonlSink) -> None:
        self.tracker = tracker
        self._lines = lines
        self._flushed = 0

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """See :class:`RunMetrics`."""
        self.tracker.log(name_value_dict)

    def add(self, values: Mapping[str, float]) -> None:
        """See :class:`RunMetrics`."""
        self.tracker.add(values)

    async def flush(self, step: int) -> Metrics:
        """See :class:`RunMetrics`."""
        self._flushed = step
        return self.tracker.flush(step)

    async def resume(self, step: int, state: dict[str, Any]) -> bool:
        """See :class:`RunMetrics`."""
        if state:
            self.tracker.load_state_dict(state["tracker"])
            self._flushed = state["flushed"]
        self._lines.truncate(state.get("offset", 0))
        return self._flushed >= step

    def state_dict(self) -> dict[str, Any]:
        """See :class:`RunMetrics`."""
        return {
            "tracker": self.tracker.state_dict(),
            "offset": self._lines.offset(),
            "flushed": self._flushed,
        }

    def close(self) -> None:
        """See :class:`RunMetrics`."""
        self.tracker.close()
