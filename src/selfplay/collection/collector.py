"""Collector: keeps games in flight on one event loop and accounts for each of them."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from selfplay.collection.accounts import Accounts
from selfplay.collection.results import Played, play
from selfplay.collection.scheduler import GameScheduler, Job
from selfplay.core import Arena, SelfplayError, Trajectory
from selfplay.core.garbage_collection import infrequent_garbage_collection
from selfplay.core.gather import all_results
from selfplay.population.model_pool import ModelPool
from selfplay.replay.buffers import BaseBuffer

__all__ = ["Collector", "GameTracker", "Played"]


class GameTracker(Protocol):
    """The part of a tracker that the collector uses."""

    def add_trajectory(self, traj: Trajectory, player_id: int, env_id: str) -> None:
        """Record a training game of one seat."""

    def add_eval_episode(self, rewards: dict[int, float], player_id: int, env_id: str) -> None:
        """Record an evaluation game."""


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
        self.accounts.payoff_started -= self.accounts.payoffs_in_flight

    async def collect(
        self, games: int, eval_games: int = 0, on_game: Callable[[Played], None] | None = None
    ) -> list[Played]:
        """Play exactly ``games`` training and ``eval_games`` evaluation games; take them in in job order.

        ``on_game`` is called whenever a game has ended.

        Raises:
            InputError: the user's input is wrong; the other games are cancelled.
        """
        jobs = [self.scheduler.next_train_job() for _ in range(games)]
        jobs += [self.scheduler.next_eval_job() for _ in range(eval_games)]
        return await self._play_all(jobs, on_game)

    async def play_payoffs(self) -> list[Played]:
        """Play the payoff games that the pool waits for; take them in in job order.

        Raises:
            InputError: the user's input is wrong; the other games are cancelled.
        """
        return await self._play_all(self.scheduler.next_payoff_jobs(), None)

    async def _play_all(self, jobs: list[Job], on_game: Callable[[Played], None] | None) -> list[Played]:
        with infrequent_garbage_collection():
            slots = asyncio.Semaphore(self.concurrency)

            async def play_in_turn(job: Job) -> Played:
                async with slots:
                    played = await self._play(job)
                if on_game is not None:
                    on_game(played)
                return played

            played = await all_results(map(play_in_turn, jobs))
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
        self.accounts.begin(job)
        return await play(self.arena, job)

    def _take_in(self, played: Played) -> None:
        job, spec = played.job, played.job.spec
        result = played.result(self.filter_opponent_invalid)
        self.accounts.end(job, result)
        if result.status == "failed":
            self.pool.played.append_failure(job.uids)
            if job.is_payoff:
                self.pool.payoffs.add_failure(job.meta.index, job.uids)
        if result.status != "finished":
            return
        self.pool.played.append(job.uids, result.rewards, result.invalid_seat)
        for trajectory in played.trajectories(result):
            self.buffer.add_player_trajectory(trajectory, trajectory.env_id)
            self.tracker.add_trajectory(trajectory, trajectory.pid, trajectory.env_id)
        if job.is_payoff:
            self.pool.payoffs.add(job.meta.index, job.uids, result.rewards, result.invalid_seat)
        elif not job.is_training:
            rewards, pid = played.rollout.extras["final_rewards"], job.meta.player_id
            self.tracker.add_eval_episode(rewards, pid, spec.env_id)
        self.pool.push_result(list(job.uids), result.rewards, spec.env_id, result.action_seq)
