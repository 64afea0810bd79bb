"""Games on a cluster: collectors play by themselves what the pool hands out, and the buffer draws batches."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ray.exceptions import RayError
from rich.console import Group

from selfplay.cluster.engine_start import calls_of_each_client, calls_per_engine
from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.game_feed import BatchInBuffer, GameFeed
from selfplay.cluster.handles import Named
from selfplay.cluster.league_exploiters import ClusterExploiters
from selfplay.cluster.learners.remote_learners import RemoteLearners
from selfplay.cluster.run_actors import RunActors
from selfplay.cluster.serving import ClusterServing
from selfplay.collection.accounts import failure_lines, payoff_lines, raised_lines
from selfplay.collection.buffer_entries import Demand
from selfplay.config import Config
from selfplay.core.adapters import AdapterRef
from selfplay.core.shell_command import shell_command
from selfplay.population.standings import Standings
from selfplay.training import assembly
from selfplay.training.evaluations import Evaluations, comparison_of
from selfplay.training.learners import Batch, Saved
from selfplay.training.metrics import RunMetrics
from selfplay.training.progress import RunProgress
from selfplay.training.run_directory import RunDirectory
from selfplay.training.run_layout import delete_after
from selfplay.training.standings_log import StandingsLog

Result = TypeVar("Result")

LOOK_EVERY = 0.25
HAND_ON_SECONDS = 10.0
"""Seconds that ending play may take, in which collectors report the results of their last games."""


class ClusterGames:
    """See :class:`selfplay.training.source.Source`.

    Args:
        config: the run's configuration.
        directory: the run's directory.
        metrics: the run's metrics.
        actors: the run's actors.
        namespace: Ray's namespace of the run.
        learners: the learners whose adapters play.
        frozen: adapters that are never trained, by name.
    """

    overlaps = True

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        metrics: RunMetrics,
        actors: RunActors,
        namespace: str,
        learners: RemoteLearners,
        frozen: dict[str, AdapterRef],
    ) -> None:
        self.config = config
        self.directory = directory
        self.metrics = metrics
        self.actors = actors
        self.buffer_name = Named("Buffer", namespace)
        self.learners = learners
        batch, games = config.buffer.batch_size, config.collection.games_per_step
        self.exploiters = None if config.league is None else ClusterExploiters(actors.pool, learners)
        self.feed = GameFeed(
            actors.buffer,
            actors.pool,
            demand=Demand(
                batch,
                entries=batch if config.collection.max_staleness else None,
                games=games,
                failed_share=config.collection.max_failed_fraction,
            ),
            add_every=config.population.add_every if config.keeps_copies else None,
            opponent_paths=self._paths_of_copies,
            exploiters=self.exploiters,
        )
        calls, patience = calls_per_engine(config), config.ray.patience
        self.client = EngineClient(
            actors.engines, config.policies, frozen=frozen, patience=patience, calls_per_engine=calls
        )
        results = {policy: assembly.evaluated_uid(config, policy) for policy in config.policies}
        self.serving = ClusterServing(self.client, results, learners)
        self.ratings = HeldRatings()
        self.evaluations = self._evaluations()
        self.standings_log = StandingsLog(directory.standings_file) if config.keeps_copies else None
        self._standings: Standings | None = None
        self._collecting: list[asyncio.Task[Any]] = []
        self._consumed = 0

    async def startup(self) -> None:
        """Nothing to do."""

    async def shutdown(self) -> None:
        """End play, in which collectors report their last results, and close the files."""
        if self._collecting:
            # An actor that is lost has ended the run, and its error is told.
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(HAND_ON_SECONDS):
                    await self.feed.stop()
                    await asyncio.wait(self._collecting)
            for task in self._collecting:
                task.cancel()
            await asyncio.gather(*self._collecting, return_exceptions=True)
        if self.standings_log is not None:
            self.standings_log.close()
        await self.serving.close()

    async def begin(self) -> None:
        """Fill the pool of a new run."""
        if await self.actors.pool.current_uid.remote(self.config.copied_policies[-1]) is None:
            for one in assembly.fixed_members(self.config):
                await self.actors.pool.add_fixed.remote(one.name, kind=one.kind, active=one.active)
            for uid in self.serving.results.values():
                await self.actors.pool.add_policy.remote(uid)
            await self.feed.add_checkpoints(0)
        await self._go_back(0)

    async def resume(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue after ``saved``: the services have their own state, which may be ahead of it.

        Games that were in flight are played again before the next weights are announced.
        """
        await self._go_back(saved.step)
        await self._begin_to_play(saved.step)

    async def play(self, saved: Saved, progress: RunProgress) -> Batch:
        """Wait for a batch of what the collectors play."""
        showing = asyncio.create_task(self._show(progress))
        try:
            ready = await self._unless_collectors_fail(self.feed.next_batch(saved))
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        progress.played = ready.games - self._consumed
        self._consumed = ready.games
        self.metrics.log({"overlap/dropped_steps": float(ready.dropped)})
        return BatchInBuffer(self.buffer_name, saved.step + 1)

    async def publish(self, saved: Saved) -> None:
        """Announce these weights to pool and collectors; after the last update, end play first."""
        if saved.step >= self.config.learning.steps:
            await self.feed.stop()
        announced = self.feed.announce(saved, playing=bool(self._collecting))
        self._standings = await self._unless_collectors_fail(announced)
        if not self._collecting:
            await self._begin_to_play(saved.step)
        await self.learners.tidy(await self.actors.pool.paths_in_use.remote())

    async def learned(self, step: int) -> None:
        """Log who of the pool beats whom; the rest is done before the update's weights are announced."""
        if self.standings_log is not None:
            assert self._standings is not None, "publish comes first"
            self.directory.check_epoch()
            self.standings_log.write(step, self._standings)

    async def log(self, play_seconds: float) -> None:
        """Log the accounts of games and steps."""
        accounts = await self.feed.accounts()
        self.metrics.log(accounts | {"learner/games_consumed": accounts["accounts/consumed"]})
        if self.exploiters is not None:
            self.metrics.log({f"league/{name}": value for name, value in self.exploiters.figures.items()})

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Play matches and compute exact measures."""
        settings = self.config.evaluation
        await self.serving.publish_results()
        games = settings.games if full else settings.games_during
        summary = await self.evaluations.run(step, games, progress)
        self.serving.check()
        await self.actors.pool.push_match.remote(step, games, self.ratings.games)
        self.ratings.games = []
        return summary

    async def kept(self, oldest_step: int) -> None:
        """Nothing to do: adapters that are not in use are deleted after every update."""

    async def state(self) -> dict[str, Any]:
        """Return the pool and the accounts, for readers; the services keep their own state.

        In lockstep the batch may be complete a moment before the pool knows how its last games ended.
        """
        await self.actors.pool.settled.remote()
        summary: dict[str, Any] = await self.actors.pool.checkpoint_summary.remote()
        return summary

    async def ending(self) -> Group | str:
        """Compare the first evaluation with the last."""
        return comparison_of(self.directory.evaluation)

    async def account_lines(self) -> list[str]:
        """Return the accounts of games and of steps."""
        games: dict[str, int] = await self.actors.pool.accounts.remote()
        steps: dict[str, int] = await self.actors.buffer.counts.remote()
        parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in steps.items())
        return [
            f"games: {games['started']} started = {games['finished']} finished + {games['failed']} failed"
            f" + {games['in_flight']} in flight ({games['retried']} retries, {games['replayed']} replayed,"
            f" {games['filtered']} left out)",
            f"answers: {parts}",
            *payoff_lines(games),
            *failure_lines(games),
            *raised_lines(games),
        ]

    def next_command(self) -> str:
        """Return the command to play against the trained model."""
        return shell_command("play", self.directory.path, "--env", self.config.envs[0].id)

    async def _paths_of_copies(self) -> dict[str, str | None]:
        """Return the adapters that join the pool at regular intervals, by policy."""
        paths = await self.learners.results()
        return {policy: paths[policy] for policy in self.config.copied_policies}

    async def _begin_to_play(self, step: int) -> None:
        """Play from now on, after update ``step``, if updates are left."""
        self._consumed = (await self.actors.pool.accounts.remote())["consumed"]
        if step < self.config.learning.steps:
            await self.actors.pool.resume.remote()
            self._collect()

    async def _go_back(self, step: int) -> None:
        """Delete what versions after ``step`` left: the learner lost them, now or before an earlier kill.

        The pool comes last, because it tells whether this is done. If the buffer still holds the batch of the
        next update, that one's files stay.
        """
        if self.standings_log is not None:
            self.standings_log.continue_after(step)
        if await self.actors.pool.latest_step.remote() <= step:
            return
        self.directory.check_epoch()
        run = self.directory
        last_batch = await self.actors.buffer.forget_after.remote(step)
        for of_versions in (run.evaluation, run.bests, run.checkpoints):
            delete_after(of_versions, step)
        for of_batches in (run.rollouts, run.batches):
            delete_after(of_batches, last_batch)
        await self.actors.tracker.truncate_after.remote(step)
        await self.actors.pool.forget_after.remote(step)

    def _collect(self) -> None:
        """Let the collectors play until the end of the run."""
        collectors = self.actors.collectors
        share = -(-self.config.collection.concurrency // len(collectors))
        alongside = min(self.config.evaluation.games_alongside, share)
        self._collecting = [_task(one.collect.remote(share, alongside)) for one in collectors]

    async def _unless_collectors_fail(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await what needs games to end; raise a collector's error if it fails meanwhile."""
        working = asyncio.create_task(work)
        try:
            while not working.done():
                for task in self._collecting:
                    if task.done():
                        task.result()
                playing = [task for task in self._collecting if not task.done()]
                await asyncio.wait([working, *playing], return_when=asyncio.FIRST_COMPLETED)
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _show(self, progress: RunProgress) -> None:
        """Show how many games of this update have ended."""
        while True:
            accounts = await self.actors.pool.accounts.remote()
            progress.played_so_far(accounts["finished"] + accounts["failed"] - accounts["consumed"])
            await asyncio.sleep(LOOK_EVERY)

    def _evaluations(self) -> Evaluations:
        config = self.config
        arena = assembly.build_arena(config, self.client, calls_of_each_client(config))
        return Evaluations(config, arena, self.ratings, self.serving.results, self.directory)


class HeldRatings:
    """The games of an evaluation, held until it is complete; then the pool rates them, once."""

    def __init__(self) -> None:
        self.games: list[tuple[str, str, float, str]] = []

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: list[str], env_id: str
    ) -> None:
        """Hold a game."""
        self.games.append((uid_me, uid_opp, final_reward, env_id))


def _task(reference: Any) -> "asyncio.Task[Any]":
    async def wait() -> Any:
        return await reference

    return asyncio.get_running_loop().create_task(wait())
