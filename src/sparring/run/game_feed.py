"""GameFeed: how a loop that learns is fed with games by the pool and the buffer of a run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from sparring.collection.buffer_entries import Demand, Drawn, Ready
from sparring.collection.pool import Published
from sparring.core import SparringError
from sparring.core.records import EncodeAnswer, records_from_steps
from sparring.run.learners import Records, Saved, by_policy

PATIENCE = 3600.0
"""Seconds without a batch, or in which games do not end, after which the learner gives up."""


@dataclass(frozen=True)
class BatchInBuffer:
    """The batch that the buffer has drawn for an update. Whoever learns it fetches it, nobody else.

    Attributes:
        buffer: returns the buffer's handle.
        update: the number of the update.
    """

    buffer: Callable[[], Any]
    update: int

    async def records(self, encode_answer: EncodeAnswer) -> Records:
        """See :class:`sparring.run.learners.UpdateBatch`."""
        drawn: Drawn | None = await self.buffer().draw.remote(self.update, Demand())
        if drawn is None:
            raise SparringError(f"the buffer has lost the batch of update {self.update}")
        return by_policy(records_from_steps(drawn.steps, encode_answer))


async def _nothing() -> None:
    """Do nothing: somebody else plays all the time."""


class GameFeed:
    """Draws the batch of each update, and announces each version to pool and buffer.

    Args:
        buffer, pool: handles.
        demand: size and readiness of an update's batch.
        patience: seconds without a batch, or in which games do not end, after which the feed gives up.
    """

    def __init__(self, buffer: Any, pool: Any, demand: Demand, patience: float = PATIENCE) -> None:
        self.buffer = buffer
        self.pool = pool
        self.demand = demand
        self.patience = patience

    async def next_batch(self, saved: Saved, play: Callable[[], Awaitable[None]] = _nothing) -> Ready:
        """Wait until the batch of the update after ``saved`` is drawn, and return its size.

        Args:
            saved: what was learned so far.
            play: plays as many games as a batch needs, unless somebody plays all the time.

        Raises:
            SparringError: there is no batch.
        """
        asked, update = perf_counter(), saved.step + 1
        demand = replace(self.demand, versions=saved.versions)
        while perf_counter() - asked < self.patience:
            await play()
            ready: Ready | None = await self.buffer.ready.remote(update, demand)
            if ready is not None and ready.steps:
                return ready
            if ready is not None:
                # Everything was too old, which no game of a league is: others may begin.
                await self.publish(saved)
        raise SparringError(f"no batch for update {update} came in {self.patience:g} s; look at the games")

    async def settle(self, step: int) -> None:
        """Wait until the games before update ``step`` have ended, in lockstep.

        Raises:
            SparringError: they do not.
        """
        try:
            async with asyncio.timeout(self.patience):
                settled = False
                while not settled:
                    settled = await self.pool.settled.remote()
        except TimeoutError:
            unended = f"games that began before update {step} have not ended in {self.patience:g} s"
            raise SparringError(f"{unended}; look at the collectors") from None

    async def publish(self, saved: Saved) -> Published:
        """Announce weights to buffer and pool, from which games play with them. Repeating it changes nothing.

        Returns the pool before the first game with these weights, its accounts with those of steps.
        """
        consumed = await self.buffer.learned_batch.remote(saved.step)
        steps = await self._steps()
        published: Published = await self.pool.publish.remote(saved.weights(), consumed)
        return replace(published, accounts=published.accounts | steps)

    async def stop(self) -> None:
        """End play."""
        await self.buffer.stop.remote()
        await self.pool.stop.remote()

    async def accounts(self) -> dict[str, int]:
        """Return the accounts of games, and those of steps as ``steps NAME``."""
        games: dict[str, int] = await self.pool.accounts.remote()
        return games | await self._steps()

    async def _steps(self) -> dict[str, int]:
        counts: dict[str, int] = await self.buffer.counts.remote()
        return {f"steps {name}": count for name, count in counts.items()}
