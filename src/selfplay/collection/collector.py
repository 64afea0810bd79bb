"""Collector: keeps games in flight on one event loop and accounts for each of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from selfplay.collection.accounts import Accounts
from selfplay.collection.scheduler import GameScheduler, Job
from selfplay.core import Arena, Rollout, SelfplayError, Trajectory, trajectories_of
from selfplay.core.garbage import infrequent_garbage_collection
from selfplay.core.tasks import all_results
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
    """A job and its rollout; the rollout of a failed job holds the reason."""

    job: Job
    rollout: Rollout


class Collector:
    """Plays the scheduler's jobs and passes finished games to buffer, pool and tracker.

    Games are passed on in the order of their jobs in lockstep (:meth:`collect`), or as they finish in a
    stream (:meth:`collect_until`). A failed game is kept as a failed rollout, after the arena has retried
    transient failures.

    Args:
        arena: runs the episodes.
        scheduler: makes the jobs.
        buffer: receives the trajectories of trained seats.
        pool: receives the results.
        tracker: receives both, for metrics.
        concurrency: maximum number of games in flight.
        filter_opponent_invalid: leave games out of training that an untrained seat lost by an invalid move.
        max_failed_fraction: a larger share of failed games means that something is broken; see
            ``stop_if_broken``.
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

    def restore_accounts(self, counts: dict[str, Any]) -> None:
        """Continue from the accounts of a checkpoint; games in flight there count as never started."""
        self.accounts = Accounts(**counts)
        self.accounts.started -= self.accounts.in_flight
        self.accounts.eval_started = self.accounts.eval_finished + self.accounts.eval_failed

    async def collect(
        self, games: int, eval_games: int = 0, on_game: Callable[[Played], None] | None = None
    ) -> list[Played]:
        """Play exactly ``games`` training and ``eval_games`` evaluation games; take them in in job order.

        ``on_game`` is called whenever a game has ended.

        Raises:
            InputError: the user's input is wrong; the other games are cancelled.
        """
        with infrequent_garbage_collection():
            jobs = [self.scheduler.next_train_job() for _ in range(games)]
            jobs += [self.scheduler.next_eval_job() for _ in range(eval_games)]
            slots = asyncio.Semaphore(self.concurrency)

            async def play(job: Job) -> Played:
                async with slots:
                    played = await self._play(job)
                if on_game is not None:
                    on_game(played)
                return played

            played = await all_results(map(play, jobs))
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

        Games that are still in flight continue at the next call. ``eval_share`` of the started games are
        evaluation games. Collection stops early when the buffer accepts no more games.

        Raises:
            SelfplayError: more than ``100 * concurrency`` games were not enough, because too few can be
                trained on.
        """
        taken: list[Played] = []
        while not enough() and self.buffer.continue_collection():
            if len(taken) > 100 * self.concurrency:
                raise SelfplayError(f"{len(taken)} games gave too little to train on; look at the rollouts")
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
            self.accounts.count_failure(rollout.error_type)
            return
        self.accounts.finished += 1
        self.accounts.count_raised(rollout.extras.get("raised"))
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
            self.accounts.count_failure(played.rollout.error_type)
            return
        self.accounts.eval_finished += 1
        self.accounts.count_raised(played.rollout.extras.get("raised"))
        pid = played.job.meta.info["eval_pid"]
        self.tracker.add_eval_episode(played.rollout.extras["final_rewards"], pid, played.job.spec.env_id)
        self._rate(played)

    def _rate(self, played: Played) -> None:
        extras, spec = played.rollout.extras, played.job.spec
        rewards = [extras["final_rewards"][pid] for pid in range(spec.num_players)]
        self.pool.push_result(list(played.job.uids), rewards, spec.env_id, extras["action_seq"])


def opponent_was_invalid(played: Played) -> bool:
    """Return whether an untrained seat ended the game by an invalid move."""
    invalid_pid = played.rollout.extras.get("invalid_pid")
    return invalid_pid is not None and invalid_pid not in played.job.spec.trained_pids
