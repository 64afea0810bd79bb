"""What the loop of a run uses of a cluster: its learners and its engines."""

# ruff: noqa: D102 - The methods are those of ``Learners`` and ``Serving``.

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparring.cluster.engines.client import EngineClient
from sparring.cluster.program_collectors import ProgramCollectors
from sparring.collection.serialization import PackedRecords
from sparring.core.adapters import AdapterRef
from sparring.population.evolution import Child
from sparring.run.learners import BatchOf, Saved, State, UpdateBatch
from sparring.run.metrics import RunMetrics
from sparring.run.serving import Serving

KEPT_NOTES = {"env_id", "finish_reason", "goes_on"}
"""What is measured of a record's ``meta``."""


class RemoteLearners:
    """The learner actor of a run as its loop uses it; see :class:`sparring.run.learners.Learners`.

    Args:
        learner: a handle of :class:`Hosted`, which holds a :class:`LearnerService`.
        checkpoint: returns the directory of the checkpoint of an update.
    """

    def __init__(self, learner: Any, checkpoint: Callable[[int], Path]) -> None:
        self._learner = learner
        self._checkpoint = checkpoint
        self._step = 0

    async def saved(self) -> Saved:
        saved: Saved = await self._learner.call.remote("saved")
        self._step = saved.step
        return saved

    async def update(self, step: int, batch: UpdateBatch, state: State) -> Saved:
        batch = _without_notes(batch)
        saved: Saved = await self._learner.call.remote("update", step, batch, await state())
        self._step = saved.step
        return saved

    async def results(self) -> dict[str, str | None]:
        results: dict[str, str | None] = await self._learner.call.remote("results")
        return results

    async def start_again(
        self, policies: Collection[str], source: State, children: Sequence[Child] = ()
    ) -> Saved:
        """Let policies and children begin; see :meth:`LearnerService.start_again`."""
        saved: Saved = await self._learner.call.remote(
            "start_again", self._step, list(policies), await source(), list(children)
        )
        return saved

    async def tidy(self, paths_in_use: list[str]) -> None:
        """Let the learner delete adapters that are neither in use nor among the newest."""
        await self._learner.call.remote("tidy", paths_in_use)

    async def write_adapters(self, directory: Path) -> None:
        await self._learner.call.remote("write_adapters", str(directory.absolute()))

    async def keep(self, state: State) -> None:
        """The checkpoint holds the state that was saved with the update."""
        await self._learner.call.remote("keep", str(self._checkpoint(self._step).absolute()))


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
        ),
        may_be_empty=batch.may_be_empty,
    )


@dataclass(eq=False, repr=False)
class ClusterServing(Serving):
    """See :class:`sparring.run.serving.Serving`.

    Args:
        learners: the learners whose adapters are served.
        run: the run's directory. The pool knows files in it by relative paths, since a run may be moved.
    """

    client: EngineClient
    results: dict[str, str]
    learners: RemoteLearners
    run: Path
    collectors: ProgramCollectors | None = None

    def __post_init__(self) -> None:
        self.run = self.run.absolute()
        self._copies: Mapping[str, str] = {}
        self._in_use: list[str] = []

    async def publish(self, saved: Saved) -> None:
        self.client.follow(saved.weights())
        if self.collectors is not None:
            await self.collectors.follow()
        await self.learners.tidy(self._in_use)

    async def freeze(self, uid: str, policy: str) -> str | None:
        """The learner's own file stays for as long as it is in use."""
        path = (await self.learners.results())[policy]
        return path and os.path.relpath(path, self.run)

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        for uid in self._copies.keys() - paths.keys():
            del self.client.adapters[uid]
        self.client.adapters |= {uid: _adapter(uid, str(self.run / path)) for uid, path in paths.items()}
        self._copies = dict(paths)
        self._in_use = sorted({str(self.run / path) for path in (*paths.values(), *kept)})

    async def publish_results(self) -> None:
        for policy, path in (await self.learners.results()).items():
            name = self.results[policy]
            self.client.adapters[name] = _adapter(name, path)

    def check(self) -> None:
        if self.client.fatal is not None:
            raise self.client.fatal

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """The engines also report to the tracker by themselves, every few seconds."""
        for engine, load in (await self.client.loads()).items():
            metrics.log({f"inference/{engine}/{name}": value for name, value in load.items()})

    async def close(self) -> None:
        if self.collectors is not None:
            self.collectors.close()
        await self.client.close()


def _adapter(name: str, path: str | None) -> AdapterRef:
    """Return an adapter that the learner wrote: its directory is named after its version."""
    return AdapterRef(name, 0 if path is None else int(Path(path).name), path)
