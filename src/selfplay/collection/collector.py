"""Collector: keeps games in flight on one event loop and accounts for each of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from selfplay.collection.accounts import Accounts
from selfplay.collection.scheduler import GameScheduler, Job
from selfplay.core import Arena, Rollout, SelfplayError, Trajectory, trajectories_of
from selfplay.core.garbage import no_garbage_collection
from selfplay.population.model_pool import ModelPool
from selfplay.replay.buffers import BaseBuffer


class GameTracker(Protocol):
    """The part of a tracker that the collector uses."""

    def add_trajectory(self, traj: Trajectory, player_id: int, env_id: str) -> None:
        """Record a training game of one seat."""

    def add_eval_episode(self, rewards: dict[int, float], player_id: int, env_id: str) -> None:
        """Record an evaluation game."""


@dataclass(frozen=True)
class Played:
    """A job and its rollout; the rollout of a failed job says why."""

    job: Job
    rollout: Rollout


class Collector:
    """Plays what the scheduler asks for and hands finished games to buffer, pool and tracker.

    Games are always handed on in the order of their jobs in lockstep (:meth:`collect`), or as they finish
    in a stream (:meth:`collect_until`). A game that fails is tried again by the arena, then kept as a
    failed rollout.

    Args:
        arena: runs the episodes.
        scheduler: says what is played.
        buffer: takes the trajectories of trained seats.
        pool: takes the results.
        tracker: takes both, for metrics.
        concurrency: most games in flight.
        filter_opponent_invalid: keep games out of training that a seat not trained lost by an invalid move.
        max_failed_fraction: more failures than this mean that something is broken; see ``stop_if_broken``.
    """

    def __init__(
        self,
        arena: Arena,
        scheduler: GameScheduler,
        buffer: BaseBuffer,
        pool: ModelPool,
        tracker: GameTracker,
        *,
        concurrency: int,
        filter_opponent_invalid: bool = False,
        max_failed_fraction: float = 0.5,
    ) -> None:
        self.arena = arena
        self.scheduler = scheduler
        self.buffer = buffer
        self.pool = pool
        self.tracker = tracker
        self.concurrency = concurrency
        self.filter_opponent_invalid = filter_opponent_invalid
        self.max_failed_fraction = max_failed_fraction
        self.accounts = Accounts()
        self._in_flight: set[asyncio.Task[Played]] = set()

    def restore_accounts(self, counts: dict[str, int]) -> None:
        """Continue from the accounts of a checkpoint; games that were in flight there never started."""
        self.accounts = Accounts(**counts)
        self.accounts.started -= self.accounts.in_flight
        self.accounts.eval_started = self.accounts.eval_finished + self.accounts.eval_failed

    async def collect(
        self, games: int, eval_games: int = 0, on_game: Callable[[Played], None] | None = None
    ) -> list[Played]:
        """Play exactly so many games to their end and take them in, in the order of their jobs.

        ``on_game`` is called whenever one has ended.
        """
        with no_garbage_collection():
            jobs = [self.scheduler.next_train_job() for _ in range(games)]
            jobs += [self.scheduler.next_eval_job() for _ in range(eval_games)]
            slots = asyncio.Semaphore(self.concurrency)

            async def play(job: Job) -> Played:
                async with slots:
                    played = await self._play(job)
                if on_game is not None:
                    on_game(played)
                return played

            played = list(await asyncio.gather(*map(play, jobs)))
            for one in played:
                self._take_in(one)
        return played

    async def collect_until(
        self,
        enough: Callable[[], bool],
        eval_share: float = 0.0,
        on_game: Callable[[Played], None] | None = None,
    ) -> list[Played]:
        """Keep ``concurrency`` games in flight and take them in as they finish, until ``enough()``.

        Games still in flight stay so and go on at the next call. ``eval_share`` of the games started are
        evaluation games. Stops early when the buffer takes no more.

        Raises:
            SelfplayError: a hundred rounds of games were not enough: nothing trainable comes of them.
        """
        taken: list[Played] = []
        while not enough() and self.buffer.continue_collection():
            if len(taken) > 100 * self.concurrency:
                raise SelfplayError(f"{len(taken)} games left too little to train on; look at the rollouts")
            while len(self._in_flight) < self.concurrency:
                started = self.accounts.started + self.accounts.eval_started
                evaluates = self.accounts.eval_started < eval_share * started
                job = self.scheduler.next_eval_job() if evaluates else self.scheduler.next_train_job()
                self._in_flight.add(asyncio.create_task(self._play(job)))
            done, self._in_flight = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            for one in sorted((task.result() for task in done), key=lambda one: one.job.name):
                self._take_in(one)
                taken.append(one)
                if on_game is not None:
                    on_game(one)
        return taken

    async def drain(self) -> list[Played]:
        """Let the games in flight finish and take them in."""
        played = [await task for task in list(self._in_flight)]
        self._in_flight.clear()
        for one in sorted(played, key=lambda one: one.job.name):
            self._take_in(one)
        return played

    def stop_if_broken(self, played: list[Played]) -> None:
        """Raise SelfplayError if more than ``max_failed_fraction`` of these games failed."""
        errors = [one.rollout.error for one in played if one.rollout.error is not None]
        if len(errors) > self.max_failed_fraction * len(played):
            raise SelfplayError(f"{len(errors)} of {len(played)} games failed; the last: {errors[-1]}")

    async def _play(self, job: Job) -> Played:
        if job.meta.type == "train":
            self.accounts.started += 1
        else:
            self.accounts.eval_started += 1
        meta = {"rollout_id": job.name, "type": job.meta.type, "seed": job.meta.seed, "uids": list(job.uids)}
        result = await self.arena.try_episode(job.episode_key, job.spec, meta)
        self.accounts.retried += result.rollout.meta.get("retried", 0)
        return Played(job, result.rollout)

    def _take_in(self, played: Played) -> None:
        if played.job.meta.type == "eval":
            self._take_in_eval(played)
            return
        rollout = played.rollout
        if rollout.error is not None:
            self.accounts.failed += 1
            return
        self.accounts.finished += 1
        if self.filter_opponent_invalid and opponent_was_invalid(played):
            self.accounts.filtered += 1
            return
        for trajectory in trajectories_of(rollout):
            self.buffer.add_player_trajectory(trajectory, trajectory.env_id)
            self.tracker.add_trajectory(trajectory, trajectory.pid, trajectory.env_id)
        self._rate(played)

    def _take_in_eval(self, played: Played) -> None:
        if played.rollout.error is not None:
            self.accounts.eval_failed += 1
            return
        self.accounts.eval_finished += 1
        pid = played.job.meta.info["eval_pid"]
        self.tracker.add_eval_episode(played.rollout.extras["final_rewards"], pid, played.job.spec.env_id)
        self._rate(played)

    def _rate(self, played: Played) -> None:
        extras, spec = played.rollout.extras, played.job.spec
        rewards = [extras["final_rewards"][pid] for pid in range(spec.num_players)]
        self.pool.push_result(list(played.job.uids), rewards, spec.env_id, extras["action_seq"])


def opponent_was_invalid(played: Played) -> bool:
    """Whether a seat that is not trained ended the game by an invalid move."""
    invalid_pid = played.rollout.extras.get("invalid_pid")
    return invalid_pid is not None and invalid_pid not in played.job.spec.trained_pids
