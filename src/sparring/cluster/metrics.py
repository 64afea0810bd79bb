"""The tracker of a cluster as a run's loop uses it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sparring.collection.sinks import Metrics


class RemoteMetrics:
    """See :class:`sparring.run.metrics.RunMetrics`. An update's figures are sent with its line.

    Args:
        tracker: a handle of :class:`TrackerService`.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._figures: defaultdict[str, float] = defaultdict(float)

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """See ``RunMetrics``."""
        self._figures |= name_value_dict

    def add(self, values: Mapping[str, float]) -> None:
        """See ``RunMetrics``."""
        for name, value in values.items():
            self._figures[name] += value

    async def flush(self, step: int) -> Metrics:
        """See ``RunMetrics``."""
        line: Metrics = await self._tracker.flush.remote(step, dict(self._figures))
        self._figures.clear()
        return line

    async def resume(self, step: int, state: dict[str, Any]) -> bool:
        """See ``RunMetrics``."""
        await self._tracker.truncate_after.remote(step)
        measured: bool = await self._tracker.has_line.remote(step)
        if not measured:
            self._figures |= state.get("figures", {})
        return measured

    def state_dict(self) -> dict[str, Any]:
        """See ``RunMetrics``."""
        return {"figures": dict(self._figures)}

    def close(self) -> None:
        """See ``RunMetrics``; the tracker ends with the run."""
