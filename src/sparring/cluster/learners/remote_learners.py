"""RemoteLearners: the learners of a run as its loop sees them; they are in an actor."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.collection.serialization import PackedRecords
from sparring.run.learners import BatchOf, Saved, State, UpdateBatch

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
