"""GameFeed: how a loop that learns is fed with games by the pool and the buffer of a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from selfplay.cluster.handles import found
from selfplay.cluster.league_exploiters import ClusterExploiters
from selfplay.collection.buffer_entries import Demand, Drawn, Ready
from selfplay.core import SelfplayError
from selfplay.core.records import EncodeAnswer, records_from_steps
from selfplay.population.standings import Standings
from selfplay.training.learners import Records, Saved, by_policy

PATIENCE = 3600.0
"""Seconds without a batch, or in which games do not end, after which the learner gives up."""


Paths = Callable[[], Awaitable[dict[str, str | None]]]
"""Returns the directory of an adapter by policy; ``None`` for the base model."""


@dataclass(frozen=True)
class BatchInBuffer:
    """The batch that the buffer has drawn for an update. The learner fetches it, nobody else.

    Attributes:
        buffer: the buffer's handle, or its name.
        update: the number of the update.
    """

    buffer: Any
    update: int

    async def records(self, encode_answer: EncodeAnswer) -> Records:
        """See :class:`selfplay.training.learners.Batch`."""
        drawn: Drawn | None = await found(self.buffer).draw.remote(self.update, Demand())
        if drawn is None:
            raise SelfplayError(f"the buffer has lost the batch of update {self.update}")
        return by_policy(records_from_steps(drawn.steps, encode_answer))


class GameFeed:
    """Draws the batch of each update, and announces each version to pool and buffer.

    Args:
        buffer, pool: handles.
        demand: size and readiness of an update's batch.
        add_every: the policies join the pool every ``add_every`` updates; ``None`` for never.
        opponent_paths: returns the directory of the adapter that joins the pool, by policy.
        exploiters: those of a league, if there is one.
        patience: seconds without a batch, or in which games do not end, after which the feed gives up.
    """

    def __init__(
        self,
        buffer: Any,
        pool: Any,
        *,
        demand: Demand,
        add_every: int | None,
        opponent_paths: Paths,
        exploiters: ClusterExploiters | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.buffer = buffer
        self.pool = pool
        self.demand = demand
        self.add_every = add_every
        self.opponent_paths = opponent_paths
        self.exploiters = exploiters
        self.patience = patience

    async def next_batch(self, saved: Saved) -> Ready:
        """Wait until the batch of the update after ``saved`` is drawn, and return its size.

        Raises:
            SelfplayError: there is no batch.
        """
        asked, update = perf_counter(), saved.step + 1
        demand = replace(self.demand, versions=saved.versions)
        while perf_counter() - asked < self.patience:
            ready: Ready | None = await self.buffer.ready.remote(update, demand)
            if ready is not None and ready.steps:
                return ready
            if ready is not None:
                # Everything was too old, which no game of a league is: others may begin.
                await self._publish(saved)
        raise SelfplayError(f"no batch for update {update} came in {self.patience:g} s; look at the games")

    async def announce(self, saved: Saved, *, playing: bool = True) -> Standings | None:
        """Announce the saved weights to all services. Repeating it after a kill changes nothing.

        Returns who of the pool beats whom by the games before these weights, if the pool's mode draws copies.

        Policies join the pool before their new weights start games, because these must meet the new pool.
        In lockstep, games in flight end first if collectors are ``playing``.

        Raises:
            SelfplayError: games that must end first do not.
        """
        if saved.step:
            if playing:
                await self._settle(saved.step)
            if self.add_every is not None and saved.step % self.add_every == 0:
                await self.add_checkpoints(saved.step)
            if self.exploiters is not None:
                saved = await self.exploiters.learned(saved)
        return await self._publish(saved)

    async def add_checkpoints(self, step: int) -> None:
        """Add what training has produced by now of each policy to the pool."""
        for policy, path in (await self.opponent_paths()).items():
            await self.pool.add_checkpoint.remote(path, step, policy)

    async def stop(self) -> None:
        """End play."""
        await self.buffer.stop.remote()
        await self.pool.stop.remote()

    async def accounts(self) -> dict[str, float]:
        """Return the accounts of games and steps, as metrics."""
        games, steps = await self.pool.accounts.remote(), await self.buffer.counts.remote()
        figures = {f"accounts/{name}": float(count) for name, count in games.items()}
        return figures | {f"accounts/steps {name}": float(count) for name, count in steps.items()}

    async def _settle(self, step: int) -> None:
        try:
            async with asyncio.timeout(self.patience):
                settled = False
                while not settled:
                    settled = await self.pool.settled.remote()
        except TimeoutError:
            unended = f"games that began before update {step} have not ended in {self.patience:g} s"
            raise SelfplayError(f"{unended}; look at the collectors") from None

    async def _publish(self, saved: Saved) -> Standings | None:
        consumed = await self.buffer.learned_batch.remote(saved.step)
        found: Standings | None = await self.pool.publish.remote(saved.weights(), consumed)
        return found
