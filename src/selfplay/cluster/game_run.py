"""GameRun: a run on games. Collectors, buffer, pool and learner work by themselves; this class monitors them.

It shows their progress, and evaluates the adapters that the learner offers.
"""

import asyncio
import shutil
from time import perf_counter
from typing import Any

from selfplay.cluster.cluster_run import ClusterRun
from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.host import AdapterRef
from selfplay.cluster.engines.start import calls_of_each_client, calls_per_engine
from selfplay.cluster.game_actors import TO_EVALUATE, GameParts
from selfplay.cluster.placement import Placement
from selfplay.collection.accounts import failure_lines, raised_lines
from selfplay.core import Arena
from selfplay.training import assembly
from selfplay.training.evaluations import Evaluations, comparison_of
from selfplay.training.progress import RunProgress, print_ending, print_stopped
from selfplay.training.progress_views import print_line
from selfplay.training.report import rebuild
from selfplay.training.run_directory import delete_after

LOOK_EVERY = 0.25
HAND_ON_SECONDS = 10.0
"""Seconds that collectors may take, at the end, to report the results of their last games."""


class GameRun(ClusterRun[GameParts]):
    """See the module."""

    def build_parts(self, placement: Placement) -> GameParts:
        """Start the actors."""
        return GameParts(self.config, self.directory.path.absolute(), placement, self.directory.epoch)

    async def prepare(self, parts: GameParts) -> None:
        """Fill the pool of a new run, and resume play if updates are left."""
        if await parts.pool.current_uid.remote() is None:
            await self._fill_pool(parts)
        learner = await parts.learner.progress.remote()
        for note in learner["notes"]:
            print_line(self.console, note)
        if learner["notice"] is not None:
            print_line(self.console, learner["notice"])
        if await parts.pool.latest_version.remote() > learner["step"]:
            await self._go_back(parts, learner["step"])
        if learner["step"] < self.config.learning.steps:
            await parts.pool.resume.remote()

    async def train(self, parts: GameParts, progress: RunProgress) -> None:
        """Let collectors and learner work, show their progress, and evaluate the adapters offered."""
        calls = calls_per_engine(self.config)
        client = EngineClient(parts.engines, patience=self.config.ray.patience, calls_per_engine=calls)
        evaluations = self._evaluations(client)
        try:
            await self._evaluate_offered(parts, evaluations, progress)
            await self._let_work(parts, evaluations, progress)
        finally:
            await client.close()

    def stop(self, parts: GameParts) -> None:
        """Tell the learner to stop; everything else ends with it."""
        parts.learner.stop.remote()

    async def _go_back(self, parts: GameParts, step: int) -> None:
        """Delete what later versions left: the learner lost them, now or before an earlier kill.

        The pool comes last, because it tells whether this is done. If the buffer still holds the batch of the
        next update, that one's files stay.
        """
        self.directory.check_epoch()
        run = self.directory
        last_batch = await parts.buffer.forget_after.remote(step)
        for of_versions in (run.evaluation, run.checkpoints, run.path / TO_EVALUATE):
            delete_after(of_versions, step)
        for of_batches in (run.rollouts, run.batches):
            delete_after(of_batches, last_batch)
        await parts.tracker.truncate_after.remote(step)
        await parts.pool.forget_after.remote(step)
        await parts.learner.publish.remote()

    async def _fill_pool(self, parts: GameParts) -> None:
        for one in assembly.fixed_members(self.config):
            await parts.pool.add_fixed.remote(one.name, kind=one.kind, active=one.active)
        await parts.pool.add_policy.remote(assembly.evaluated_uid(self.config))
        await parts.pool.add_checkpoint.remote(None, 0)

    async def _let_work(self, parts: GameParts, evaluations: Evaluations, progress: RunProgress) -> None:
        concurrency = self.config.collection.concurrency
        alongside = self.config.evaluation.games_alongside
        share = -(-concurrency // len(parts.collectors))
        collecting = [one.collect.remote(share, min(alongside, share)) for one in parts.collectors]
        learning = _task(parts.learner.train.remote(self.config.learning.steps))
        playing = [_task(reference) for reference in collecting]
        try:
            while not learning.done():
                if self.stopping:
                    self.stop(parts)  # again: a learner that was killed meanwhile does not know
                for one in playing:
                    if one.done():
                        one.result()  # it ends before the learner only if something is wrong
                await self._show(parts, progress)
                await self._evaluate_offered(parts, evaluations, progress)
                await asyncio.wait([learning], timeout=LOOK_EVERY)
            learning.result()
            await asyncio.wait(playing, timeout=HAND_ON_SECONDS)
            await self._show(parts, progress)
            await self._evaluate_offered(parts, evaluations, progress)
            await parts.learner.track.remote()
        finally:
            for task in [learning, *playing]:
                task.cancel()

    async def _show(self, parts: GameParts, progress: RunProgress) -> None:
        learner = await parts.learner.progress.remote()
        accounts = await parts.pool.accounts.remote()
        games = accounts["finished"] + accounts["failed"] - accounts["consumed"]
        away = ", ".join(f"{name} is away" for name in self.health.away)
        metrics = {
            name if "/" in name else f"learner/{name}": one for name, one in learner["metrics"].items()
        }
        progress.show(learner["step"], games, metrics, away)
        progress.warn(learner["step"], metrics)

    async def _evaluate_offered(
        self, parts: GameParts, evaluations: Evaluations, progress: RunProgress
    ) -> None:
        """Evaluate the adapters offered; an evaluation that was interrupted is repeated."""
        offered = sorted((self.directory.path / TO_EVALUATE).glob("step-*"))
        for place in offered:
            step = int(place.name.removeprefix("step-"))
            adapter = str(place.absolute()) if step else None
            await self._evaluate(parts, evaluations, AdapterRef(f"version {step}", step, adapter), progress)
            self.directory.check_epoch()
            shutil.rmtree(place, ignore_errors=True)

    async def _evaluate(
        self, parts: GameParts, evaluations: Evaluations, adapter: AdapterRef, progress: RunProgress
    ) -> None:
        self.directory.check_epoch()
        settings, step = self.config.evaluation, adapter.version
        client, ratings = evaluations.arena.client, evaluations.pool
        assert isinstance(client, EngineClient)
        assert isinstance(ratings, HeldRatings)
        client.policy = adapter
        games = settings.games if step in (0, self.config.learning.steps) else settings.games_during
        started = perf_counter()
        summary = await evaluations.run(step, games, progress)
        seconds = perf_counter() - started
        if client.fatal is not None:
            raise client.fatal
        await parts.pool.push_match.remote(step, ratings.games)
        ratings.games = []
        await parts.tracker.add.remote({"time/evaluation_seconds": seconds})
        progress.evaluated(step, summary, seconds)

    def _evaluations(self, client: EngineClient) -> Evaluations:
        config = self.config
        arena = Arena(
            client,
            max_calls=calls_of_each_client(config),
            episode_timeout=config.collection.game_timeout,
            retries=config.collection.retries,
        )
        uid = assembly.evaluated_uid(config)
        return Evaluations(config, arena, HeldRatings(), "default", uid, self.directory)

    async def finish(self, parts: GameParts) -> None:
        """Print how the run ended, and where its results are."""
        games, steps = await parts.pool.accounts.remote(), await parts.buffer.counts.remote()
        learner = await parts.learner.progress.remote()
        if learner["step"] < self.config.learning.steps:
            print_stopped(self.console, learner["step"], self.config.learning.steps, self.directory.path)
            return
        self.directory.check_epoch()
        report = rebuild(self.directory.path)
        print_ending(
            self.console,
            comparison_of(self.directory.evaluation),
            account_lines(games, steps, learner["trained_records"]),
            adapters=[self.directory.checkpoint(learner["step"])],
            report=report,
            next_command=f"selfplay play {self.directory.path} --env {self.config.envs[0].id}",
        )


class HeldRatings:
    """The games of an evaluation, held until it is complete; then the pool rates them, once."""

    def __init__(self) -> None:
        self.games: list[tuple[str, str, float, str]] = []

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: list[str], env_id: str
    ) -> None:
        """Hold a game."""
        self.games.append((uid_me, uid_opp, final_reward, env_id))


def account_lines(games: dict[str, int], steps: dict[str, int], trained: int) -> list[str]:
    """Return lines that account for every game and step."""
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in steps.items())
    return [
        f"games: {games['started']} started = {games['finished']} finished + {games['failed']} failed"
        f" + {games['in_flight']} in flight ({games['retried']} retries, {games['replayed']} replayed,"
        f" {games['filtered']} left out)",
        f"steps: {parts}",
        f"trained on: {trained} records",
        *failure_lines(games),
        *raised_lines(games),
    ]


def _task(reference: Any) -> "asyncio.Task[Any]":
    async def wait() -> Any:
        return await reference

    return asyncio.get_running_loop().create_task(wait())
