"""GameSource: records of games against the pool, through the collector and the replay buffer."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group

from selfplay.collection.accounts import failure_lines, payoff_lines, raised_lines
from selfplay.collection.collector import Collector, Played
from selfplay.config import Config
from selfplay.core import Arena, InferenceClient, Role, SelfplayError
from selfplay.core.play import seat_role
from selfplay.core.records import records_from_steps
from selfplay.core.shell_command import shell_command
from selfplay.population.standings import standings
from selfplay.record.tracker import Tracker
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.rollout_log import RolloutLog
from selfplay.training import assembly
from selfplay.training.evaluations import Evaluations, comparison_of
from selfplay.training.league_exploiters import Exploiters, RestartableLearners
from selfplay.training.learners import Batch, BatchOf, Saved, by_policy
from selfplay.training.metrics import RunMetrics
from selfplay.training.opponents import FrozenOpponents
from selfplay.training.progress import RunProgress
from selfplay.training.rewards import build_buffer
from selfplay.training.run_directory import RunDirectory
from selfplay.training.serving import Serving
from selfplay.training.standings_log import StandingsLog


class GameSource:
    """A :class:`Source` of games. Each seat belongs to a policy."""

    overlaps = False

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        tracker: Tracker,
        metrics: RunMetrics,
        client: InferenceClient,
        serving: Serving,
        learners: RestartableLearners,
    ) -> None:
        self.config = config
        self.directory = directory
        self.metrics = metrics
        self.client = client
        self.serving = serving
        self.rollout_log = RolloutLog(directory.rollouts)
        batch_log = BatchLog(directory.batches) if config.buffer.log_batches else None
        self.buffer = build_buffer(config, tracker, batch_log)
        self.pool = assembly.build_pool(config, config.policies, tracker)
        self.opponents = FrozenOpponents(config, self.pool, config.copied_policies, serving, directory)
        self.standings_log = StandingsLog(directory.standings_file) if self.opponents.keeps_copies else None
        self.scheduler = assembly.build_scheduler(config, self.pool)
        self.league = self.scheduler.league
        self.exploiters = (
            Exploiters(self.league, self.opponents, learners, serving) if self.league is not None else None
        )
        self.arena = self._build_arena()
        self.evaluations = Evaluations(config, self.arena, self.pool, serving.results, directory)
        self.collector = Collector(
            self.arena,
            self.scheduler,
            self.buffer,
            self.pool,
            tracker,
            concurrency=config.collection.concurrency,
            filter_opponent_invalid=config.collection.filter_opponent_invalid,
            max_failed_fraction=config.collection.max_failed_fraction,
        )
        self._played: list[Played] = []
        """The games of the current update."""

    def _build_arena(self) -> Arena:
        config = self.config
        arena = assembly.build_arena(config, self.client, config.inference.max_queue)
        for key, episode in assembly.build_episodes(config).items():
            arena.add_episode(key, episode)
        for env in config.envs:
            for pid in range(env.num_players):
                temperature, max_tokens = config.inference.temperature, config.inference.max_tokens
                arena.add_role(Role(seat_role(pid), temperature=temperature, max_tokens=max_tokens))
        return arena

    async def startup(self) -> None:
        """Nothing to do."""

    async def shutdown(self) -> None:
        """Close the files."""
        if self.standings_log is not None:
            self.standings_log.close()

    async def begin(self) -> None:
        """Add what the policies start from to the pool."""
        self._delete_after(0)
        await self.opponents.begin()

    async def resume(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`; the pool's active checkpoints are served again."""
        self.pool.load_state_dict(state["pool"])
        self.collector.restore_accounts(state["accounts"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.buffer.load_state_dict(state["buffer"])
        if self.league is not None:
            self.league.load_state_dict(state["league"])
        self.opponents.serve_active()
        self._delete_after(saved.step)

    def _delete_after(self, step: int) -> None:
        self.rollout_log.truncate_after(step)
        self.directory.truncate_after(step)
        if self.standings_log is not None:
            self.standings_log.continue_after(step)

    async def play(self, saved: Saved, progress: RunProgress) -> Batch:
        """Play games and draw a batch from the buffer."""
        step, settings = saved.step, self.config.collection
        evaluating = self.config.evaluation.games_alongside if self.scheduler.evaluation else 0

        def count(played: Played) -> None:
            if played.job.meta.type == "train":
                progress.played_one()

        failed_payoffs = await self._play_payoffs(progress)
        if settings.max_staleness == 0:
            self._played = await self.collector.collect(settings.games_per_step, evaluating, count)
        else:
            share = evaluating / (evaluating + settings.games_per_step)
            self._played = await self.collector.collect_until(self._enough(), share, count)
        self._log_games(step + 1, failed_payoffs)
        self.buffer.drop_stale(step, settings.max_staleness, saved.versions)
        if not self.buffer.entries():
            raise SelfplayError("no step of this update's games can be trained on; look at the rollouts")
        steps = self.buffer.draw(self.config.buffer.batch_size)
        return BatchOf(by_policy(records_from_steps(steps)))

    async def _play_payoffs(self, progress: RunProgress) -> list[Played]:
        """Play the games between frozen members that are due, before opponents are drawn; return the failed.

        Raises:
            SelfplayError: too many of them failed.
        """
        waiting = len(self.pool.payoffs.waiting)
        if not waiting:
            return []
        progress.say(f"{waiting} games between frozen opponents, for the payoff matrix")
        played = await self.collector.play_payoffs()
        self.collector.stop_if_broken(played)
        return [one for one in played if one.rollout.error is not None]

    def _enough(self) -> Callable[[], bool]:
        """Return the condition on which an overlapping update begins.

        It is ``batch_size`` entries in the buffer if that is configured, else ``games_per_step`` more games.
        """
        if self.config.buffer.batch_size is not None:
            wanted = self.config.buffer.batch_size
            return lambda: self.buffer.entries() >= wanted
        finished = self.collector.accounts.finished + self.config.collection.games_per_step
        return lambda: self.collector.accounts.finished >= finished

    def _log_games(self, step: int, others: Sequence[Played] = ()) -> None:
        """Write the games of update ``step``, and failed ``others``.

        Raises:
            SelfplayError: too many of them failed.
        """
        limit = self.config.tracking.games_logged
        games = [one.rollout for one in self._played if one.rollout.error is None][:limit]
        failed = [one.rollout for one in (*self._played, *others) if one.rollout.error is not None]
        self.directory.check_epoch()
        self.rollout_log.write(step, games + failed)
        self.collector.stop_if_broken(self._played)

    async def publish(self, saved: Saved) -> None:
        """Play with these weights from now on."""
        await self.serving.publish(saved)

    async def learned(self, step: int) -> None:
        """Freeze a copy every ``add_every`` updates, and log who of the pool beats whom.

        Games in flight finish first, because they may be playing against a copy that retires. They are logged
        with this update, so that a checkpoint after it does not lose them.
        """
        self.directory.check_epoch()
        if self.opponents.is_due(step):
            drained = await self.collector.drain()
            self.directory.check_epoch()
            if drained:
                self._played += drained
                self._log_games(step)
            await self.opponents.freeze(step)
        if self.exploiters is not None:
            await self.exploiters.learned(step)
        if self.standings_log is not None:
            self.directory.check_epoch()
            self.standings_log.write(step, standings(self.pool))

    async def log(self, play_seconds: float) -> None:
        """Log the engine's statistics, the accounts of games and steps, and the pool's ratings."""
        await self.serving.log(self.metrics, play_seconds)
        self.metrics.log({f"accounts/{k}": float(v) for k, v in self.collector.accounts.figures().items()})
        self.metrics.log({f"accounts/steps {k}": float(v) for k, v in self.buffer.counts().items()})
        if self.pool.sample_mode == "meta-nash":
            self.metrics.log({"accounts/unplayed_pairs": float(self.pool.unplayed_pairs())})
        if self.league is not None:
            self.metrics.log({f"league/{name}": value for name, value in self.league.figures().items()})
        self.pool.snapshot()

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Play matches and compute exact measures."""
        settings = self.config.evaluation
        games = settings.games if full else settings.games_during
        summary = await self.evaluations.run(step, games, progress)
        self.serving.reset()
        return summary

    async def ending(self) -> Group | str:
        """Compare the first evaluation with the last."""
        return comparison_of(self.directory.evaluation)

    async def account_lines(self) -> list[str]:
        """Return the accounts of games and of answers."""
        accounts = self.collector.accounts
        answers = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.buffer.counts().items())
        return [
            f"games: {accounts.started} started = {accounts.finished} finished + {accounts.failed} failed"
            f" + {accounts.in_flight} in flight ({accounts.retried} retries, {accounts.filtered} left out)",
            f"answers: {answers}",
            *payoff_lines(accounts.figures()),
            *failure_lines(accounts.figures()),
            *raised_lines(accounts.figures()),
        ]

    def next_command(self) -> str:
        """Return the command to play against the trained model."""
        return shell_command("play", self.directory.path, "--env", self.config.envs[0].id)

    async def kept(self, oldest_step: int) -> None:
        """Delete the copies of checkpoints that were retired by ``oldest_step``, and cached contexts."""
        self.opponents.delete_retired(oldest_step)
        self.serving.forget()

    async def state(self) -> dict[str, Any]:
        """Return the state of accounts, scheduler, buffer and pool."""
        return {
            "accounts": self.collector.accounts.to_dict(),
            "scheduler": self.scheduler.state_dict(),
            "buffer": self.buffer.state_dict(),
            "pool": self.pool.state_dict(),
            **({} if self.league is None else {"league": self.league.state_dict()}),
        }
