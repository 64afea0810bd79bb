"""The learners and the tracker of a run as its loop sees them; they are actors."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.collection.serialization import PackedRecords
from sparring.collection.sinks import Metrics
from sparring.run.learners import BatchOf, Saved, State, UpdateBatch


class RemoteLogger:
    """Passes metrics on to a tracker's handle and does not wait."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record values by metric name."""
        self.tracker.log.remote(dict(name_value_dict))


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


KEPT_NOTES = {"env_id", "finish_reason", "goes_on"}
"""What is measured of a record's ``meta``."""


class RemoteLearners:
    """The learner actor of a run as its loop uses it; see :class:`sparring.run.learners.Learners`.

    Args:
        learner: the actor's handle.
        checkpoint: returns the directory of the checkpoint of an update.
    """

    def __init__(self, learner: Any, checkpoint: Callable[[int], Path]) -> None:
        self._learner = learner
        self._checkpoint = checkpoint
        self._step = 0

    async def saved(self) -> Saved:
        """See ``Learners``."""
        saved: Saved = await self._learner.saved.remote()
        self._step = saved.step
        return saved

    async def update(self, step: int, batch: UpdateBatch, state: State) -> Saved:
        """See ``Learners``."""
        saved: Saved = await self._learner.update.remote(step, _without_notes(batch), await state())
        self._step = saved.step
        return saved

    async def results(self) -> dict[str, str | None]:
        """See ``Learners``."""
        results: dict[str, str | None] = await self._learner.results.remote()
        return results

    async def start_again(self, policies: Collection[str]) -> Saved:
        """Let policies begin again from what they began with; see :meth:`LearnerService.start_again`."""
        saved: Saved = await self._learner.start_again.remote(self._step, list(policies))
        return saved

    async def tidy(self, paths_in_use: list[str]) -> None:
        """Let the learner delete adapters that are neither in use nor among the newest."""
        await self._learner.tidy.remote(paths_in_use)

    async def write_adapters(self, directory: Path) -> None:
        """See ``Learners``."""
        await self._learner.write_adapters.remote(str(directory.absolute()))

    async def keep(self, state: State) -> None:
        """See ``Learners``; the checkpoint holds the state that was saved with the update."""
        await self._learner.keep.remote(str(self._checkpoint(self._step).absolute()))


def _without_notes(batch: UpdateBatch) -> UpdateBatch:
    """Return a batch without the program's own notes, whose classes another process may not know."""
    if not isinstance(batch, BatchOf):
        return batch
    batch.check_tokens()
    return BatchOf(
        PackedRecords(
            {
                policy: [
                    replace(one, meta={name: one.meta[name] for name in KEPT_NOTES & one.meta.keys()})
                    for one in some
                ]
                for policy, some in batch.by_policy.items()
            }
        )
    )
