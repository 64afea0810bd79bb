"""StandardLearner: an actor that draws batches, learns, saves and announces the weights by itself.

A run of sparring's own has one loop, in the process of the command (``sparring.run.trainer``). The
actors of UnstableBaselines have none: there the learner is told to train, and everything else follows it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ray.exceptions import RayError

from sparring.cluster.calls import found
from sparring.cluster.learner import LearnerService
from sparring.collection.buffer_state import Demand
from sparring.run.game_source import BatchInBuffer, GameFeed
from sparring.run.learners import Saved
from sparring.run.metrics import turn_figures

HEARTBEAT_SECONDS = 2.0


class LearningLoop:
    """The loop of a learner that draws its batches from a buffer.

    Args:
        learner: makes and saves the updates.
        step_buffer, model_pool, tracker: handles; the tracker may be ``None``.
        demand: size and readiness of an update's batch.
        add_every: the policy joins the pool every ``add_every`` updates.
        checkpoint: returns the directory in which the checkpoint of an update is kept; ``None`` keeps none.
    """

    def __init__(
        self,
        learner: LearnerService,
        step_buffer: Any,
        model_pool: Any,
        tracker: Any = None,
        *,
        demand: Demand,
        add_every: int = 1,
        checkpoint: Callable[[int], Path | None] = lambda step: None,
    ) -> None:
        self.learner = learner
        self.step_buffer = step_buffer
        self.model_pool = model_pool
        self.tracker = tracker
        self.checkpoint = checkpoint
        self.state = "starting"
        self.add_every = add_every
        self.feed = GameFeed(step_buffer, model_pool, demand)

    async def train(self, iterations: int) -> int:
        """Learn until there are ``iterations`` updates, then stop the collectors; return how many there are.

        When called again, for example by Ray after a kill, it continues after the last saved update.

        Raises:
            SparringError: there is no batch, or an update fails.
        """
        beating = asyncio.create_task(self._beat())
        try:
            await self._announce(self.learner.saved())
            await self._track()
            while self.learner.saved().step < iterations:
                await self._update(iterations)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        self.state = "done"
        await self.feed.stop()
        return self.learner.saved().step

    async def _update(self, iterations: int) -> None:
        self.state, started = "waiting", perf_counter()
        step = self.learner.saved().step + 1
        ready = await self.feed.next_batch(self.learner.saved())
        waited = perf_counter() - started
        self.state = "learning"
        turn = {"play": waited, "played": float(ready.games), "dropped": float(ready.dropped)}
        saved = await self.learner.update(
            step, BatchInBuffer(partial(found, self.step_buffer), step), {"turn": turn}
        )
        if saved.step >= iterations:
            await self.feed.stop()  # before new weights let new games begin
        self.state = "saving"
        await self._announce(saved)
        await self._track()
        directory = self.checkpoint(step)
        if directory is not None:
            await self.learner.keep(str(directory))
        await self.learner.tidy(await self.model_pool.paths_in_use.remote())

    async def _announce(self, saved: Saved) -> None:
        """Let the policy join the pool if that is due, and announce its weights."""
        if saved.step:
            await self.feed.settle(saved.step)
            if saved.step % self.add_every == 0:
                for policy, path in (await self.learner.results()).items():
                    await self.model_pool.add_checkpoint.remote(path, saved.step, policy)
        await self.feed.publish(saved)

    async def _track(self) -> None:
        """Write the metrics of the saved update; a repeated call changes nothing."""
        saved = self.learner.saved()
        if self.tracker is None or not saved.step:
            return
        turn = saved.state["turn"]
        accounts = await self.feed.accounts()
        metrics = saved.figures | {f"accounts/{name}": float(count) for name, count in accounts.items()}
        metrics |= turn_figures(
            saved.seconds, saved.trained_tokens, play=turn["play"], played=turn["played"], overlaps=True
        )
        metrics |= {"overlap/dropped_steps": turn["dropped"], "learner/games_consumed": turn["played"]}
        await self.tracker.flush.remote(saved.step, metrics)

    async def _beat(self) -> None:
        while self.tracker is not None:
            load = {"step": self.learner.saved().step, "state": self.state}
            self.tracker.heartbeat.remote("Learner", load)
            with suppress(RayError):  # the buffer is away for a moment
                steps, games = await self.step_buffer.size.remote(), await self.step_buffer.games.remote()
                self.tracker.heartbeat.remote("Buffer", {"steps": steps, "games": games})
            await asyncio.sleep(HEARTBEAT_SECONDS)
