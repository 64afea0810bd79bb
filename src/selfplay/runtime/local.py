"""A run in one process: play, learn, rate, evaluate, save; and go on after a kill as if nothing had been."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from safetensors import SafetensorError

from selfplay.collection.collector import Collector, Played
from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import Arena, InputError, Role, SelfplayError, Step
from selfplay.learning.checkpoints import SavedLearner, load_checkpoint, save_checkpoint
from selfplay.learning.policy import BASE, TRAINED, LoraSettings
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.records import records_from_steps
from selfplay.replay.rollout_log import RolloutLog
from selfplay.runtime import assembly
from selfplay.runtime.evaluations import Evaluations
from selfplay.runtime.opponents import FrozenOpponents
from selfplay.runtime.progress import RunProgress, print_ending
from selfplay.runtime.report import rebuild
from selfplay.runtime.run_directory import RunDirectory
from selfplay.tracking.sinks import JsonlSink, Sink, TensorBoardSink, WandbSink
from selfplay.tracking.tracker import Tracker


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` and print what came of it.

    Raises:
        InputError: the configuration cannot be run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; what was saved can be resumed.
    """
    directory = RunDirectory.create(run_dir)
    _run(config, directory, console)


def resume(run_dir: Path, console: Console) -> None:
    """Continue a run from its newest checkpoint; from its beginning if it has none.

    Raises:
        InputError: there is no such run, it is in use, finished or damaged.
        SelfplayError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    directory.lock()
    config = load_config(str(directory.config_file), {})
    steps = directory.saved_steps()
    if steps and steps[-1] >= config.learning.steps and directory.report_file.exists():
        raise InputError(
            "--resume",
            f"{run_dir} is finished ({steps[-1]} of {config.learning.steps} updates)",
            f"Look at it: selfplay report {run_dir}",
        )
    _run(config, directory, console)


def _run(config: Config, directory: RunDirectory, console: Console) -> None:
    try:
        if not directory.config_file.exists():
            directory.write_config(dump_config(config))
        run = LocalRun(config, directory, console)
        asyncio.run(run.run())
    except InputError:
        directory.remove_new()
        raise
    except (OSError, SafetensorError) as error:
        raise SelfplayError(
            f"{directory.path} cannot be written ({error}). Free the disk or fix its permissions, then: "
            f"selfplay train --resume {directory.path}"
        ) from error
    finally:
        directory.unlock()


@dataclass
class _Phase:
    """Wall-clock seconds of the parts of one update."""

    play: float = 0.0
    learn: float = 0.0


class LocalRun:
    """Everything one run needs, assembled from its configuration and its newest checkpoint."""

    def __init__(self, config: Config, directory: RunDirectory, console: Console) -> None:
        self.config = config
        self.directory = directory
        self.console = console
        lora = LoraSettings(config.lora.rank, float(config.lora.alpha), list(config.lora.target_modules))
        self.policy = assembly.build_policy(config.model, lora, config.seed, console.print)
        self.learner = assembly.build_learner(config.learning, config, self.policy)
        self.engine = assembly.build_engine(config, self.policy)
        self.metrics = JsonlSink(directory.metrics_file)
        self.tracker = Tracker(directory.path.name, sinks=self._sinks())
        self.rollout_log = RolloutLog(directory.rollouts)
        batch_log = BatchLog(directory.batches) if config.buffer.log_batches else None
        self.buffer = assembly.build_buffer(config, self.tracker, batch_log)
        self.pool = assembly.build_pool(config, self.tracker)
        self.opponents = FrozenOpponents(config, self.pool, self.policy, self.engine, directory)
        self.scheduler = assembly.build_scheduler(config, self.pool)
        self.arena = self._build_arena()
        self.evaluations = Evaluations(
            config, self.arena, self.pool, self.learner.result, directory.evaluation
        )
        self.collector = Collector(
            self.arena,
            self.scheduler,
            self.buffer,
            self.pool,
            self.tracker,
            concurrency=config.collection.concurrency,
            filter_opponent_invalid=config.collection.filter_opponent_invalid,
            max_failed_fraction=config.collection.max_failed_fraction,
        )
        self.encode_answer = assembly.answer_encoder(self.policy)
        self.trained_records = 0
        self.stopping = False

    def _sinks(self) -> list[Sink]:
        sinks: list[Sink] = [self.metrics]
        project = self.config.tracking.wandb_project
        if project is not None:
            sinks.append(WandbSink(project, self.directory.path.name, directory=self.directory.path))
        if self.config.tracking.tensorboard:
            sinks.append(TensorBoardSink(self.directory.path / "tensorboard"))
        return sinks

    def _build_arena(self) -> Arena:
        arena = Arena(
            self.engine,
            max_calls=self.config.inference.max_queue,
            episode_timeout=self.config.collection.game_timeout,
            retries=self.config.collection.retries,
        )
        for env in self.config.envs:
            arena.add_episode(assembly.env_spec(env).key, assembly.build_episode(env))
            for pid in range(env.num_players):
                arena.add_role(
                    Role(
                        f"player_{pid}",
                        temperature=self.config.inference.temperature,
                        max_tokens=self.config.inference.max_tokens,
                    )
                )
        return arena

    @property
    def step(self) -> int:
        """Updates made so far; the policy's version."""
        return self.learner.version

    async def run(self) -> None:
        """Train to the end, or until interrupted."""
        total = self.config.learning.steps
        self._begin()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        with RunProgress(self.console, total, self.config.collection.games_per_step) as progress:
            if self.step == 0 and not self.directory.saved_steps():
                progress.say("evaluating the untrained model")
                progress.evaluated(0, await self._evaluate(self.config.evaluation.games, progress))
                self._save()
            progress.updated(self.step, {})
            while self.step < total and not self.stopping:
                metrics = await self._update(progress)
                progress.updated(self.step, metrics)
                await self._evaluate_if_due(progress)
                if self.step % self.config.run.save_every == 0 or self.step == total or self.stopping:
                    self._save()
        self.tracker.close()
        if self.step < total:
            self.console.print(
                f"stopped after update {self.step} of {total}; saved. "
                f"Continue with: selfplay train --resume {self.directory.path}"
            )
            return
        self._finish()

    def _begin(self) -> None:
        """Start from the newest checkpoint, or register the untrained policy."""
        self.engine.publish(BASE, BASE, 0)
        saved = self.directory.saved_steps()
        if saved:
            self._load(saved[-1])
        else:
            self.metrics.truncate(0)
            self.rollout_log.truncate_after(0)
            self.pool.add_checkpoint(None, 0)
        self._publish()

    def _publish(self) -> None:
        """Play with the newest weights: both adapters live where the learner changes them."""
        self.engine.publish(TRAINED, TRAINED, self.step)
        self.engine.publish(self.learner.result, self.learner.result, self.step)

    def _interrupt(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        self.console.print("finishing this update, then saving; press Ctrl-C again to stop at once")

    async def _update(self, progress: RunProgress) -> dict[str, float]:
        """Play, learn, publish: one update of the policy."""
        phase = _Phase()
        started = perf_counter()
        played = await self._play(progress)
        phase.play = perf_counter() - started
        started = perf_counter()
        steps = self._batch()
        learned = self.learner.update(records_from_steps(steps, self.encode_answer))
        self.trained_records += int(learned["records"])
        phase.learn = perf_counter() - started
        self._publish()
        if self.step % self.config.population.add_every == 0:
            await self._join_pool()
        return self._log_metrics(played, learned, phase)

    async def _play(self, progress: RunProgress) -> list[Played]:
        settings = self.config.collection
        evaluating = self.config.evaluation.games_alongside if self.scheduler.evaluation else 0
        if settings.max_staleness == 0:
            played = await self.collector.collect(settings.games_per_step, evaluating, progress.played_game)
        else:
            share = evaluating / (evaluating + settings.games_per_step)
            played = await self.collector.collect_until(self._enough(), share, progress.played_game)
        self._log_games(played)
        self.collector.stop_if_broken(played)
        self.buffer.drop_stale(self.step, settings.max_staleness)
        if not self.buffer.entries():
            raise SelfplayError("no step of this update's games can be trained on; look at the rollouts")
        return played

    def _enough(self) -> Callable[[], bool]:
        """When an overlapping update begins: at ``batch_size`` entries or ``games_per_step`` more games."""
        if self.config.buffer.batch_size is not None:
            wanted = self.config.buffer.batch_size
            return lambda: self.buffer.entries() >= wanted
        finished = self.collector.accounts.finished + self.config.collection.games_per_step
        return lambda: self.collector.accounts.finished >= finished

    def _batch(self) -> list[Step]:
        stored = self.buffer.entries()
        batch = self.buffer.get_batch(min(self.config.buffer.batch_size or stored, stored))
        return [step for part in batch for step in (part if isinstance(part, list) else [part])]

    async def _join_pool(self) -> None:
        """Register the policy. Games in flight finish first where they may play an opponent that leaves."""
        if self.opponents.keeps_copies:
            await self.collector.drain()
        self.opponents.add_policy(self.step, self.learner.result)

    def _log_games(self, played: list[Played]) -> None:
        limit = self.config.tracking.games_logged
        games = [one.rollout for one in played if one.rollout.error is None][:limit]
        failed = [one.rollout for one in played if one.rollout.error is not None]
        self.rollout_log.write(self.step + 1, games + failed)

    def _log_metrics(
        self, played: list[Played], learned: dict[str, float], phase: _Phase
    ) -> dict[str, float]:
        stats = self.engine.stats
        self.tracker.log_learner(
            {k: v for k, v in learned.items() if not k.endswith(("_seconds", "_second"))}
        )
        self.tracker.log(
            {
                "time/play_seconds": phase.play,
                "time/learn_seconds": phase.learn,
                "time/games_per_second": len(played) / max(phase.play, 1e-9),
                "time/trained_tokens_per_second": learned["separate_tokens"] / max(phase.learn, 1e-9),
                "time/generated_tokens_per_second": stats.generated_tokens / max(phase.play, 1e-9),
                "inference/generated_tokens": float(stats.generated_tokens),
                "inference/computed_tokens": float(stats.computed_tokens),
                "inference/forward_passes": float(stats.forward_passes),
            }
        )
        self.tracker.log({f"accounts/{k}": float(v) for k, v in self.collector.accounts.to_dict().items()})
        self.tracker.log({f"accounts/steps {k}": float(v) for k, v in self.buffer.counts().items()})
        self.pool.snapshot()
        self.engine.reset_stats()
        return self.tracker.flush(self.step)

    async def _evaluate_if_due(self, progress: RunProgress) -> None:
        settings = self.config.evaluation
        if self.step == self.config.learning.steps:
            progress.say("evaluating the trained model")
            progress.evaluated(self.step, await self._evaluate(settings.games, progress))
        elif settings.every and self.step % settings.every == 0:
            progress.evaluated(self.step, await self._evaluate(settings.games_during, progress))

    async def _evaluate(self, games: int, progress: RunProgress) -> dict[str, str]:
        summary = await self.evaluations.run(self.step, games, progress)
        self.engine.reset_stats()
        return summary

    def _save(self) -> None:
        """Write a checkpoint; afterwards the engine knows as little as after a restart."""
        state = {
            "step": self.step,
            "samples_seen": self.learner.samples_seen,
            "trained_records": self.trained_records,
            "metrics_offset": self.metrics.offset(),
            "accounts": self.collector.accounts.to_dict(),
            "scheduler": self.scheduler.state_dict(),
            "buffer": self.buffer.state_dict(),
            "pool": self.pool.state_dict(),
            "tracker": self.tracker.state_dict(),
        }
        path = self.directory.checkpoint(self.step)
        learners = [SavedLearner(TRAINED, self.learner.result, self.learner.tensors())]
        save_checkpoint(path, self.policy, self.config.model.name, learners, state)
        self.directory.prune_checkpoints(self.config.run.keep_checkpoints)
        self.engine.forget_contexts()

    def _load(self, step: int) -> None:
        checkpoint = load_checkpoint(self.directory.checkpoint(step))
        state = checkpoint.state
        self.learner.load_tensors(checkpoint.learners[TRAINED], state["step"], state["samples_seen"])
        if self.learner.result != TRAINED:
            self.policy.load_adapter_state(checkpoint.adapters[TRAINED], self.learner.result)
        self.trained_records = state["trained_records"]
        self.metrics.truncate(state["metrics_offset"])
        self.rollout_log.truncate_after(step)
        self.directory.truncate_after(step)
        self.collector.restore_accounts(state["accounts"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.buffer.load_state_dict(state["buffer"])
        self.pool.load_state_dict(state["pool"])
        self.tracker.load_state_dict(state["tracker"])
        self.opponents.serve_active()
        self.console.print(f"continuing from update {step} of {self.config.learning.steps}")

    def _finish(self) -> None:
        report = rebuild(self.directory.path)
        print_ending(
            self.console,
            self.evaluations.tables(),
            self.collector.accounts,
            self.buffer.counts(),
            self.trained_records,
            adapter=self.directory.checkpoint(self.step),
            report=report,
            run=self.directory.path,
            env_id=self.config.envs[0].id,
        )
