"""Collector: plays the games that a pool in this process hands out, on one event loop, when it is asked."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from sparring.collection.buffer import BufferService
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.pool import PoolService
from sparring.collection.results import GameJob, Played, TakeIn, play
from sparring.collection.scheduler import NO_LIMIT
from sparring.collection.tracker import Tracker
from sparring.core import Arena, Episode, InferenceClient, Role
from sparring.core.concurrency import EPISODE_TIMEOUT, MAX_CALLS, RETRIES, all_results
from sparring.core.garbage_collection import infrequent_garbage_collection
from sparring.core.play import seat_role

OnGame = Callable[[Played], None]
"""Called whenever a game has ended."""


@dataclass(frozen=True)
class Limits:
    """Limits on games: seconds and retries of one game, and concurrent calls of all games."""

    episode_timeout: float = EPISODE_TIMEOUT
    retries: int = RETRIES
    max_calls: int = MAX_CALLS


def arena_of_games(
    client: InferenceClient, settings: PlaySettings, episodes: Mapping[str, Episode], limits: Limits
) -> Arena:
    """Return an arena in which these games can be played, by the keys of their environments."""
    arena = Arena(
        client,
        max_calls=limits.max_calls,
        episode_timeout=limits.episode_timeout,
        retries=limits.retries,
    )
    for key, episode in episodes.items():
        arena.add_episode(key, episode)
    environments = [*settings.environments, *(env for env, _ in settings.evaluation)]
    for pid in range(max(env.num_players for env in environments)):
        arena.add_role(Role(seat_role(pid), temperature=settings.temperature, max_tokens=settings.max_tokens))
    return arena


@dataclass(eq=False, repr=False)
class Collector:
    """Plays games and passes them on to buffer, tracker and pool.

    In lockstep, games are passed on in the order of their jobs when all have ended (:meth:`play_all`);
    otherwise as they finish (:meth:`play_until`). At most ``concurrency`` games are in flight.
    """

    NAME: ClassVar[str] = "here"
    """The name under which the pool knows this collector."""

    arena: Arena
    pool: PoolService
    buffer: BufferService
    tracker: Tracker
    _: KW_ONLY
    concurrency: int
    take_in: TakeIn
    _requests: int = field(default=0, init=False)
    _in_flight: set[asyncio.Task[Played]] = field(default_factory=set, init=False)

    async def play_all(self, on_game: OnGame) -> None:
        """Play every game that may start: payoff games first, then those of training and evaluation."""
        await self._play_payoffs(on_game)
        await self._play(self._next(NO_LIMIT, NO_LIMIT), on_game)

    async def play_until(self, enough: Callable[[], bool], eval_share: float, on_game: OnGame) -> bool:
        """Keep ``concurrency`` games in flight and take them in as they finish, until ``enough()``.

        Games that are still in flight continue at the next call. ``eval_share`` of the started games are
        evaluation games. Returns ``False`` if ``100 * concurrency`` games were not enough: too few can be
        trained on.
        """
        await self._play_payoffs(on_game)
        accounts, taken = self.pool.ledger.accounts, 0
        while not enough():
            if taken > 100 * self.concurrency:
                return False
            evaluating = accounts["eval_started"]
            evaluates = evaluating < eval_share * (accounts["started"] + evaluating)
            while len(self._in_flight) < self.concurrency:
                (job,) = self._next(not evaluates, evaluates)
                self._in_flight.add(asyncio.create_task(play(self.arena, job)))
            done, self._in_flight = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            played = sorted((task.result() for task in done), key=_by_name)
            self._pass_on(played)
            for one in played:
                on_game(one)
            taken += len(done)
        return True

    async def drain(self) -> None:
        """Let the games in flight finish and take them in."""
        played = [await task for task in list(self._in_flight)]
        self._in_flight.clear()
        self._pass_on(sorted(played, key=_by_name))

    async def _play_payoffs(self, on_game: OnGame) -> None:
        if self.pool.pool.payoffs.waiting:
            await self._play(self._next(NO_LIMIT, 0), on_game)

    def _next(self, training: int, evaluation: int) -> list[GameJob]:
        self._requests += 1
        return self.pool.hand_out(self.NAME, self._requests, training, evaluation).jobs

    async def _play(self, jobs: Sequence[GameJob], on_game: OnGame) -> None:
        with infrequent_garbage_collection():
            slots = asyncio.Semaphore(self.concurrency)

            async def play_in_turn(job: GameJob) -> Played:
                async with slots:
                    played = await play(self.arena, job)
                on_game(played)
                return played

            self._pass_on(await all_results(map(play_in_turn, jobs)))

    def _pass_on(self, played: Sequence[Played]) -> None:
        taken = self.take_in(played)
        self.buffer.add_games(taken.games)
        self.tracker.put(taken.values, taken.counts)
        self.pool.finish(taken.results)


def _by_name(played: Played) -> str:
    return played.job.name
