"""GameSource: records of games against the pool, played in this process or by collectors on a cluster."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

from sparring.collection.buffer_state import Demand, Drawn, Ready
from sparring.collection.pool import Published
from sparring.config import Config
from sparring.config.league import LeagueSettings
from sparring.config.play import Games
from sparring.core import Arena, SparringError
from sparring.core.records import EncodeAnswer, records_from_steps
from sparring.run.evaluations import Evaluations
from sparring.run.learners import Learners, Records, Saved, UpdateBatch, by_policy
from sparring.run.metrics import RunMetrics
from sparring.run.play_source import PlaySource
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import Serving

PATIENCE = 3600.0
"""Seconds without a batch, or in which games do not end, after which the learner gives up."""


@dataclass(frozen=True)
class BatchInBuffer:
    """The batch that the buffer has drawn for an update; whoever learns it fetches it from there."""

    buffer: Callable[[], Any]
    update: int

    async def records(self, encode_answer: EncodeAnswer) -> Records:
        """Fetch the batch and return its records."""
        drawn: Drawn | None = await self.buffer().draw.remote(self.update, Demand())
        if drawn is None:
            raise SparringError(f"the buffer has lost the batch of update {self.update}")
        return by_policy(records_from_steps(drawn.steps, encode_answer))


async def _nothing() -> None:
    """Do nothing: somebody else plays all the time."""


Result = TypeVar("Result")


class GameFeed:
    """Draws the batch of each update, and announces each version to pool and buffer, by their handles.

    After ``patience`` seconds without a batch, or in which games do not end, it gives up with a
    SparringError.
    """

    def __init__(self, buffer: Any, pool: Any, demand: Demand, patience: float = PATIENCE) -> None:
        self.buffer = buffer
        self.pool = pool
        self.demand = demand
        self.patience = patience

    async def next_batch(self, saved: Saved, play: Callable[[], Awaitable[None]] = _nothing) -> Ready:
        """Wait until the batch of the update after ``saved`` is drawn, and return its size.

        ``play`` plays as many games as a batch needs, unless somebody plays all the time.
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
        """Wait until the games before update ``step`` have ended, in lockstep."""
        try:
            async with asyncio.timeout(self.patience):
                settled = False
                while not settled:
                    settled = await self.pool.settled.remote()
        except TimeoutError:
            unended = f"games that began before update {step} have not ended in {self.patience:g} s"
            raise SparringError(f"{unended}; look at the collectors") from None

    async def publish(self, saved: Saved) -> Published:
        """Announce weights to buffer and pool; return the pool before the first game with them.

        The accounts are those of games, and of steps as ``steps NAME``. Repeating it changes nothing.
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


class GameHost(GameFeed, ABC):
    """Where the games of a run are played, and where its pool and its buffer are: here or on a cluster."""

    overlaps = False
    """Whether games are played while the learners learn."""

    @abstractmethod
    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue after ``saved`` from a state, or begin if it is empty; forget what came later."""

    @abstractmethod
    async def state(self) -> dict[str, Any]:
        """Return the pool and the accounts, and what a run in this process needs to continue."""

    @abstractmethod
    async def play(self, saved: Saved, progress: RunProgress) -> Ready:
        """Draw the batch of the update after ``saved`` when enough was played."""

    @abstractmethod
    async def finish_games(self, step: int, freezes: bool) -> None:
        """Let the games end that must before the weights of update ``step`` are announced.

        ``freezes``: whether copies of the policies are about to join the pool.
        """

    def batch(self, update: int) -> UpdateBatch:
        """Return the batch that was drawn for an update."""
        return BatchInBuffer(lambda: self.buffer, update)

    async def watched(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do ``work``; raise the error of whoever plays if that fails meanwhile."""
        return await work

    async def published(self, step: int) -> None:
        """Play on after update ``step``, if updates are left and nobody waits for a batch to play."""

    async def shutdown(self) -> None:
        """End play; games of this process end with it."""


class GameSource(PlaySource):
    """Plays games. Each seat belongs to a policy.

    Args:
        games: where games are played.
        serving: answers the model calls.
        learners: the learners, of which a league lets some begin again.
        arena: plays the matches of evaluations.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        metrics: RunMetrics,
        games: GameHost,
        serving: Serving,
        learners: Learners,
        arena: Arena,
    ) -> None:
        super().__init__(
            config,
            directory,
            metrics,
            serving,
            games.pool,
            config.policies,
            config.copied_policies,
            arena.client,
            arena.concurrency,
            learners,
        )
        self.games = games
        self.overlaps = games.overlaps
        self.evaluations = Evaluations(config, arena, serving.results, directory)
        self._accounts: dict[str, int] = {}
        self._consumed = 0

    async def shutdown(self) -> None:
        """End play and close the files."""
        try:
            await self.games.shutdown()
        finally:
            await super().shutdown()

    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """Fill the pool of a new run, or continue from a state; the active copies are served again."""
        if not state:
            await self.add_members()
        await self.games.begin(saved, state)
        self.standings_log.continue_after(saved.step)
        await self.serve_copies()
        self._consumed = (await self.games.pool.accounts.remote())["consumed"]

    async def play(self, saved: Saved, progress: RunProgress) -> UpdateBatch:
        """Play until a batch can be drawn from the buffer."""
        started = perf_counter()
        try:
            ready = await self.games.play(saved, progress)
        finally:
            self.serving.check()
        self.play_seconds = perf_counter() - started
        progress.played = ready.games - self._consumed
        self._consumed = ready.games
        self.metrics.log({"overlap/dropped_steps": float(ready.dropped)})
        return self.games.batch(saved.step + 1)

    async def publish(self, saved: Saved) -> None:
        """Play with these weights, freeze copies of them if that is due, and log who beats whom."""
        self.directory.check_epoch()
        published = await self.games.watched(self._announce(saved))
        self._accounts = published.accounts
        await self.games.published(saved.step)
        self.log_standings(saved.step, published.standings)

    async def _announce(self, saved: Saved) -> Published:
        """Announce weights to all who use them, and return the pool before the first game with them.

        Policies join the pool before their new weights start games, because these must meet the new pool.
        Repeating it after a kill changes nothing.
        """
        await self.serving.publish(saved)
        if saved.step:
            await self.games.finish_games(saved.step, bool(await self.missing_copies(saved.step)))
            self.directory.check_epoch()
            await self.add_copies(saved.step)
            saved = await self.league_turn(saved, self.state)
        published = await self.games.publish(saved)
        await self.serve_copies()
        return published

    async def rewards(self, player: str, league: LeagueSettings) -> dict[str, float]:
        """Play matches against opponents that stay the same."""
        assert league.evolution is not None
        seats = league.seated(Games(self.config.envs).seats).players[player].seats
        return await self.evaluations.rewards(player, [int(seat) for seat in seats], league.evolution.games)

    async def log(self, play_seconds: float) -> None:
        """Log the engines' statistics, the accounts of games and steps, and the figures of a league."""
        await self.log_serving(play_seconds)
        self.metrics.log({f"accounts/{name}": float(count) for name, count in self._accounts.items()})
        self.log_league()

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Play matches and compute exact measures."""
        settings = self.config.evaluation
        await self.serving.publish_results()
        games = settings.games if full else settings.games_during
        summary = await self.evaluations.run(step, games, progress)
        self.serving.check()
        await self.games.pool.push_match.remote(step, games, self.evaluations.played)
        self.evaluations.played = []
        self.serving.reset()
        return summary

    async def state(self) -> dict[str, Any]:
        """Return the state of the games."""
        return await self.games.state()

    async def accounts(self) -> dict[str, int]:
        """Return the accounts of games and of steps."""
        return await self.games.accounts()
