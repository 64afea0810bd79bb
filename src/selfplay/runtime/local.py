"""A run in one process: play, learn, publish, evaluate, save; and resume after a kill without a trace."""

import asyncio
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.console import Console
from safetensors import SafetensorError

from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import InputError, SelfplayError
from selfplay.learning.checkpoints import (
    SavedLearner,
    check_format,
    check_policies,
    load_checkpoint,
    newest_whole,
    save_checkpoint,
)
from selfplay.learning.policy import BASE, TRAINED, LoraSettings
from selfplay.record.sinks import JsonlSink
from selfplay.record.tracker import Tracker
from selfplay.replay.rollout_log import RolloutLog
from selfplay.runtime import assembly
from selfplay.runtime.answer_figures import answer_figures
from selfplay.runtime.game_source import GameSource
from selfplay.runtime.overlap import staleness_shares
from selfplay.runtime.program_source import ProgramSource
from selfplay.runtime.programs import build_program, policies_of
from selfplay.runtime.progress import RunProgress, print_ending, print_stopped
from selfplay.runtime.progress_views import print_line, working
from selfplay.runtime.report import rebuild
from selfplay.runtime.run_directory import RunDirectory
from selfplay.runtime.sessions import note_session
from selfplay.runtime.source import Source, SourceParts
from selfplay.runtime.threads import available_cores, with_chosen_threads
from selfplay.runtime.update_figures import learned_figures, turn_figures

STATE_FORMAT = 2
"""Format of a checkpoint's state. In states without a number, ratings mixed the policy with its copies."""


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` and print its results.

    Raises:
        InputError: the configuration cannot run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; it can be resumed from what was saved.
    """
    directory = RunDirectory.create(run_dir)
    _run(config, directory, console)


def resume(run_dir: Path, console: Console) -> None:
    """Continue a run from its newest checkpoint; from its beginning if it has none.

    Raises:
        InputError: the run does not exist, is in use, is finished or is damaged.
        SelfplayError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    directory.lock()
    try:
        config = load_config(str(directory.config_file), {})
        steps = directory.saved_steps()
        if steps and steps[-1] >= config.learning.steps and directory.report_file.exists():
            raise InputError(
                "--resume",
                f"{run_dir} is finished ({steps[-1]} of {config.learning.steps} updates)",
                f"Look at it: selfplay report {run_dir}",
            )
        _run(config, directory, console)
    finally:
        directory.unlock()


def _run(config: Config, directory: RunDirectory, console: Console) -> None:
    try:
        settled = with_chosen_threads(config, available_cores(), partial(print_line, console))
        if settled is not config or not directory.config_file.exists():
            directory.write_config(dump_config(settled))
        run = LocalRun(settled, directory, console)
        directory.check_epoch()
        note_session(directory.path)
        asyncio.run(run.run())
    except InputError:
        directory.remove_new()
        raise
    except SelfplayError as error:
        raise directory.after_failure(str(error)) from error
    except (OSError, SafetensorError) as error:
        raise directory.cannot_be_written(error) from error
    except BaseException:
        directory.remove_new()
        raise
    finally:
        directory.unlock()


@dataclass
class _Phase:
    """Wall-clock seconds of the parts of one update."""

    play: float = 0.0
    learn: float = 0.0


class LocalRun:
    """One run in this process, assembled from its configuration and its newest checkpoint."""

    def __init__(self, config: Config, directory: RunDirectory, console: Console) -> None:
        self.config = config
        self.directory = directory
        self.console = console
        program = build_program(config)
        policies = policies_of(program) if program is not None else [TRAINED]
        lora = LoraSettings(config.lora.rank, float(config.lora.alpha), list(config.lora.target_modules))
        with working(console, f"loading {config.model.name}"):
            self.model = assembly.build_policy(
                config.model, lora, config.seed, partial(print_line, console), policies
            )
        for note in self.model.notes:
            print_line(console, note)
        self.learners = {
            policy: assembly.build_learner(config.learning, config, self.model, policy) for policy in policies
        }
        self.engine = assembly.build_engine(config, self.model)
        directory.check_epoch()
        self.metrics = JsonlSink(directory.metrics_file)
        self.tracker = Tracker(
            directory.path.name, sinks=assembly.build_sinks(config, self.metrics, directory.path)
        )
        self.rollout_log = RolloutLog(directory.rollouts)
        parts = SourceParts(
            config,
            directory,
            self.tracker,
            self.rollout_log,
            {policy: learner.result for policy, learner in self.learners.items()},
        )
        self.source: Source = (
            ProgramSource(parts, program, self.engine)
            if program is not None
            else GameSource(parts, self.model, self.engine)
        )
        self.step = 0
        self.trained_records = 0
        self.stopping = False

    async def run(self) -> None:
        """Train to the end, or until interrupted."""
        await self.source.startup()
        try:
            await self._run()
        finally:
            await self.source.shutdown()

    async def _run(self) -> None:
        total = self.config.learning.steps
        self._begin()
        for asked_to_end in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(asked_to_end, self._interrupt)
        unit, size = assembly.unit_of_play(self.config)
        with RunProgress(self.console, total, unit, size) as progress:
            if self.step == 0 and not self.directory.saved_steps():
                progress.say("evaluating the untrained model")
                await self._evaluate(progress, full=True)
                self._save()
            progress.updated(self.step, {})
            while self.step < total and not self.stopping:
                figures = await self._update(progress)
                progress.updated(self.step, figures)
                await self._evaluate_if_due(progress)
                self.directory.check_epoch()
                progress.warn(self.step, self.tracker.flush(self.step))
                if self.step % self.config.run.save_every == 0 or self.step == total or self.stopping:
                    self._save()
        self.tracker.close()
        if self.step < total:
            print_stopped(self.console, self.step, total, self.directory.path)
            return
        self._finish()

    def _begin(self) -> None:
        """Start from the newest checkpoint, or from scratch."""
        self.directory.check_epoch()
        self.engine.publish(BASE, BASE, 0)
        saved = self.directory.saved_steps()
        if saved:
            _, notice = newest_whole(saved, self.directory.checkpoint, self._load)
            if notice is not None:
                print_line(self.console, notice)
        else:
            self.metrics.truncate(0)
            self.rollout_log.truncate_after(0)
            self.source.begin()
        self._publish()

    def _publish(self) -> None:
        """Play with the newest weights: the learner changes both adapters of a policy in place."""
        for policy, learner in self.learners.items():
            self.engine.publish(policy, policy, learner.version)
            self.engine.publish(learner.result, learner.result, learner.version)

    def _interrupt(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        self.console.print("finishing this update, then saving; press Ctrl-C again to stop at once")

    async def _update(self, progress: RunProgress) -> dict[str, float]:
        """Play, learn and publish: one update of every policy that has records."""
        phase = _Phase()
        started = perf_counter()
        records = await self.source.collect(self.step, progress)
        phase.play = perf_counter() - started
        answers = answer_figures(one for of_policy in records.values() for one in of_policy)
        started = perf_counter()
        learned = {}
        progress.say("learning")
        for policy, learner in self.learners.items():
            if records.get(policy):
                acted = [record.policy_version for record in records[policy]]
                self.tracker.log(staleness_shares(acted, learner.version))
                learned[policy] = learner.update(records[policy])
        phase.learn = perf_counter() - started
        self.trained_records += int(sum(one["records"] for one in learned.values()))
        self.step += 1
        self._publish()
        await self.source.learned(self.step)
        figures = answers | learned_figures(learned, alone=len(self.learners) == 1)
        self._log_metrics(figures | turn_figures(learned, phase.play, phase.learn, progress.played), phase)
        return figures

    def _log_metrics(self, figures: dict[str, float], phase: _Phase) -> None:
        stats = self.engine.stats
        self.tracker.log(figures)
        self.tracker.log(
            {
                "time/generated_tokens_per_second": stats.generated_tokens / max(phase.play, 1e-9),
                "inference/generated_tokens": float(stats.generated_tokens),
                "inference/computed_tokens": float(stats.computed_tokens),
                "inference/forward_passes": float(stats.forward_passes),
                "inference/spelled_control_tokens": float(stats.spelled_control_tokens),
            }
        )
        self.source.log()
        self.engine.reset_stats()

    async def _evaluate_if_due(self, progress: RunProgress) -> None:
        every = self.config.evaluation.every
        if self.step == self.config.learning.steps:
            progress.say("evaluating the trained model")
            await self._evaluate(progress, full=True)
        elif every and self.step % every == 0:
            await self._evaluate(progress, full=False)

    async def _evaluate(self, progress: RunProgress, *, full: bool) -> None:
        """Evaluate and print; the seconds are logged with this update's metrics, or else the first's."""
        started = perf_counter()
        summary = await self.source.evaluate(self.step, full=full, progress=progress)
        seconds = perf_counter() - started
        self.engine.reset_stats()
        self.tracker.add({"time/evaluation_seconds": seconds})
        progress.evaluated(self.step, summary, seconds)

    def _save(self) -> None:
        """Write a checkpoint, and empty the engine's caches as a restart would."""
        self.directory.check_epoch()
        learners = self.learners.items()
        state = {
            "format": STATE_FORMAT,
            "step": self.step,
            "versions": {policy: learner.version for policy, learner in learners},
            "samples_seen": {policy: learner.samples_seen for policy, learner in learners},
            "trained_records": self.trained_records,
            "metrics_offset": self.metrics.offset(),
            "source": self.source.state_dict(),
            "tracker": self.tracker.state_dict(),
        }
        saved = [SavedLearner(policy, learner.result, learner.tensors()) for policy, learner in learners]
        path = self.directory.checkpoint(self.step)
        save_checkpoint(path, self.model, self.config.model.name, saved, state)
        self.directory.prune_checkpoints(self.config.run.keep_checkpoints)
        self.source.tidy(self.directory.saved_steps()[0])
        self.engine.forget_contexts()

    def _load(self, step: int) -> None:
        path = self.directory.checkpoint(step)
        checkpoint = load_checkpoint(path)
        state = checkpoint.state
        check_format(path, state, STATE_FORMAT)
        check_policies(path, checkpoint, self.learners)
        self.step = state["step"]
        for policy, learner in self.learners.items():
            tensors = checkpoint.learners[policy]
            learner.load_tensors(tensors, state["versions"][policy], state["samples_seen"][policy])
            if learner.result != policy:
                self.model.load_adapter_state(checkpoint.adapters[policy], learner.result)
        self.trained_records = state["trained_records"]
        self.source.load_state_dict(state["source"])
        self.tracker.load_state_dict(state["tracker"])
        # Only now: what does not fit this configuration is refused above, and nothing of the run is lost.
        self.metrics.truncate(state["metrics_offset"])
        self.rollout_log.truncate_after(step)
        self.directory.truncate_after(step)
        self.console.print(f"continuing from update {step} of {self.config.learning.steps}")

    def _finish(self) -> None:
        self.directory.check_epoch()
        report = rebuild(self.directory.path)
        checkpoint = self.directory.checkpoint(self.step)
        print_ending(
            self.console,
            self.source.ending(),
            [*self.source.account_lines(), f"trained on: {self.trained_records} records"],
            adapters=assembly.adapter_paths(checkpoint, list(self.learners)),
            report=report,
            next_command=self.source.next_command(),
        )
