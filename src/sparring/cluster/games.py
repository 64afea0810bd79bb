"""Games on a cluster: collectors play by themselves what the pool hands out, and the buffer draws batches."""

# ruff: noqa: D102 - The methods are those of ``GameHost``.

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ray.exceptions import RayError

from sparring.cluster.calls import Named, found
from sparring.cluster.run_actors import RunActors
from sparring.collection.buffer_state import Demand, Ready
from sparring.config import Config
from sparring.run.game_source import BatchInBuffer, GameHost
from sparring.run.learners import Saved, UpdateBatch
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory

Result = TypeVar("Result")

LOOK_EVERY = 0.25
HAND_ON_SECONDS = 10.0
"""Seconds that ending play may take, in which collectors report the results of their last games."""


class ClusterGames(GameHost):
    """See :class:`sparring.run.game_source.GameHost`. Pool and buffer keep their own journals."""

    def __init__(self, config: Config, directory: RunDirectory, actors: RunActors, namespace: str) -> None:
        self.config = config
        self.directory = directory
        self.actors = actors
        self.overlaps = config.collection.max_staleness > 0
        self.buffer_name = Named("Buffer", namespace)
        batch = config.buffer.batch_size
        demand = Demand(
            batch,
            entries=batch if self.overlaps else None,
            games=config.collection.games_per_step,
            failed_share=config.collection.max_failed_fraction,
        )
        super().__init__(actors.buffer, actors.pool, demand)
        self._collecting: list[asyncio.Task[Any]] = []

    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """The services have their own state, which may be ahead of what is saved.

        Games that were in flight are played again before the next weights are announced.
        """
        await self._go_back(saved.step)
        if state:
            await self.published(saved.step)

    async def state(self) -> dict[str, Any]:
        """What the pool says of itself, for readers.

        In lockstep the batch may be complete a moment before the pool knows how its last games ended.
        """
        await self.actors.pool.settled.remote()
        summary: dict[str, Any] = await self.actors.pool.checkpoint_summary.remote()
        return summary

    def batch(self, update: int) -> UpdateBatch:
        return BatchInBuffer(partial(found, self.buffer_name), update)

    async def play(self, saved: Saved, progress: RunProgress) -> Ready:
        showing = asyncio.create_task(self._show(progress))
        try:
            return await self.watched(self.next_batch(saved))
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def finish_games(self, step: int, freezes: bool) -> None:
        """After the last update, end play first."""
        if step >= self.config.learning.steps:
            await self.stop()
        if self._collecting:
            await self.settle(step)

    async def watched(self, work: Coroutine[Any, Any, Result]) -> Result:
        working = asyncio.create_task(work)
        try:
            while not working.done():
                for task in self._collecting:
                    if task.done():
                        task.result()
                playing = [task for task in self._collecting if not task.done()]
                await asyncio.wait([working, *playing], return_when=asyncio.FIRST_COMPLETED)
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def published(self, step: int) -> None:
        if not self._collecting and step < self.config.learning.steps:
            await self.actors.pool.resume.remote()
            self._collect()

    async def shutdown(self) -> None:
        """Collectors report their last results."""
        if not self._collecting:
            return
        # An actor that is lost has ended the run, and its error is told.
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(HAND_ON_SECONDS):
                await self.stop()
                await asyncio.wait(self._collecting)
        for task in self._collecting:
            task.cancel()
        await asyncio.gather(*self._collecting, return_exceptions=True)

    async def _go_back(self, step: int) -> None:
        """Delete what versions after ``step`` left: the learner lost them, now or before an earlier kill.

        The pool comes last, because it tells whether this is done. If the buffer still holds the batch of the
        next update, that one's files stay.
        """
        if await self.actors.pool.latest_step.remote() <= step:
            return
        self.directory.check_epoch()
        last_batch = await self.actors.buffer.forget_after.remote(step)
        self.directory.truncate_after(step, last_batch)
        await self.actors.tracker.truncate_after.remote(step)
        await self.actors.pool.forget_after.remote(step)

    def _collect(self) -> None:
        """Let the collectors play until the end of the run."""
        collectors = self.actors.collectors
        share = -(-self.config.collection.concurrency // len(collectors))
        alongside = min(self.config.evaluation.games_alongside, share)
        self._collecting = [_task(one.collect.remote(share, alongside)) for one in collectors]

    async def _show(self, progress: RunProgress) -> None:
        while True:
            accounts = await self.actors.pool.accounts.remote()
            progress.played_so_far(accounts["finished"] + accounts["failed"] - accounts["consumed"])
            await asyncio.sleep(LOOK_EVERY)


def _task(reference: Any) -> "asyncio.Task[Any]":
    async def wait() -> Any:
        return await reference

    return asyncio.get_running_loop().create_task(wait())
