"""CollectorService: plays the games that the pool hands out, each as a coroutine, and passes on the results.

It has no state to save: a collector that is killed and restarted receives its games again.
"""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparring.cluster.calls import HEARTBEAT_SECONDS
from sparring.cluster.engines.client import EngineClient
from sparring.collection.buffer_state import PackedGames
from sparring.collection.collector import Limits, arena_of_games
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.pool_state import Jobs
from sparring.collection.results import GameJob, Played, TakeIn, play
from sparring.core import Episode, SparringError
from sparring.core.garbage_collection import infrequent_garbage_collection


@dataclass
class _Flight:
    """Games of one kind in flight."""

    most: int
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def free(self) -> int:
        """How many more games may begin."""
        return self.most - len(self.tasks)


@dataclass(eq=False, repr=False)
class CollectorService:
    """See the module.

    Args:
        name: the collector's name in the run.
        episodes: episodes by the keys of the settings' environments.
        limits: limits on games.
        take_in: what becomes of a game that has ended.
    """

    name: str
    client: EngineClient
    step_buffer: Any
    model_pool: Any
    tracker: Any
    settings: PlaySettings
    episodes: Mapping[str, Episode]
    limits: Limits = field(default_factory=Limits)
    take_in: TakeIn = field(default_factory=TakeIn)

    def __post_init__(self) -> None:
        self.arena = arena_of_games(self.client, self.settings, self.episodes, self.limits)
        self._training = _Flight(0)
        self._evaluation = _Flight(0)
        self._played: list[Played] = []
        self._some_played = asyncio.Event()
        self._room = asyncio.Event()
        self._batches = 0
        self._collecting: asyncio.Task[None] | None = None

    async def collect(self, num_workers: int, num_eval_workers: int = 0) -> None:
        """Keep this many training and evaluation games in flight until the learner is done.

        Ray repeats the call if a connection breaks; then it waits for the first one.

        Raises:
            SparringError: no game can continue: an engine is lost, or does not answer with the right weights.
        """
        if self._collecting is not None and not self._collecting.done():
            await asyncio.shield(self._collecting)
            return
        self._collecting = asyncio.create_task(self._collect(num_workers, num_eval_workers))
        await self._collecting

    async def _collect(self, num_workers: int, num_eval_workers: int) -> None:
        self._training.most, self._evaluation.most = num_workers, num_eval_workers
        self._handing_on: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._handing_on.set_result(True)
        loops = [self._feed(), self._follow(), self._hand_on(), self._beat(), self._watch()]
        tasks = [asyncio.create_task(one) for one in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except SparringError as error:
            await self.step_buffer.fail.remote(str(error))
            raise
        finally:
            for task in [*tasks, *self._training.tasks, *self._evaluation.tasks]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(self._handing_on, self._hand_on_the_rest(), return_exceptions=True)
            await self.client.close()

    def in_flight(self) -> dict[str, int]:
        """Return the number of games in flight."""
        return {"in_flight": len(self._training.tasks), "evaluating": len(self._evaluation.tasks)}

    async def _feed(self) -> None:
        """Request games whenever more may begin, and begin them."""
        number, incarnation = 0, uuid.uuid4().hex
        await self.model_pool.register.remote(self.name, self.settings, incarnation)
        while True:
            self._room.clear()
            if not (self._training.free or self._evaluation.free):
                await self._room.wait()
            number += 1
            jobs: Jobs = await self.model_pool.next_jobs.remote(
                self.name,
                number,
                self._training.free,
                self._evaluation.free,
                incarnation=incarnation,
            )
            if jobs.stopped:
                return
            self.client.adapters |= jobs.adapters
            self.client.follow(jobs.weights)
            for job in jobs.jobs:
                self._begin(job)

    async def _follow(self) -> None:
        while True:
            news: Jobs = await self.model_pool.newest.remote(self.client.step)
            if news.stopped:
                return
            self.client.follow(news.weights)

    def _begin(self, job: GameJob) -> None:
        flight = self._training if job.is_training or job.is_payoff else self._evaluation
        task = asyncio.create_task(self._play(job))
        flight.tasks.add(task)
        task.add_done_callback(lambda done: self._ended(flight, done))

    def _ended(self, flight: _Flight, task: "asyncio.Task[None]") -> None:
        flight.tasks.discard(task)
        self._room.set()
        if not task.cancelled() and task.exception() is not None and self.client.fatal is None:
            self.client.fatal = SparringError(f"a game could not be played: {task.exception()}")

    async def _play(self, job: GameJob) -> None:
        played = await play(self.arena, job)  # meanwhile the list may be replaced
        self._played.append(played)
        self._some_played.set()

    async def _watch(self) -> None:
        while self.client.fatal is None:
            await asyncio.sleep(0.2)
        raise self.client.fatal

    async def _hand_on(self) -> None:
        while True:
            await self._some_played.wait()
            await asyncio.sleep(0)
            self._some_played.clear()
            if self.client.fatal is not None:
                raise self.client.fatal
            played, self._played = self._played, []
            self._handing_on = asyncio.ensure_future(self._hand_on_games(played))
            if not await asyncio.shield(self._handing_on):
                return

    async def _hand_on_the_rest(self) -> None:
        """Pass on the games that ended last: the buffer may have them already, and the pool must know."""
        await asyncio.wait([self._handing_on])
        if self._played:
            await self._hand_on_games(self._played)

    async def _hand_on_games(self, played: list[Played]) -> bool:
        """Tell buffer, then tracker, then pool: a game lost in between is played and rated once more."""
        taken = self.take_in(played)
        wanted: bool = await self.step_buffer.add_games.remote(PackedGames(taken.games))
        if self.tracker is not None:
            self._batches += 1
            batch = f"{self.client.name}:{self._batches}"
            await self.tracker.put.remote(batch, taken.values, taken.counts)
        await self.model_pool.finish.remote(taken.results)
        return wanted

    async def _beat(self) -> None:
        """Report how many games are in flight; Python's garbage collector runs only once between beats."""
        while True:
            with infrequent_garbage_collection():
                await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.tracker is not None:
                self.tracker.heartbeat.remote(self.name, self.in_flight())
