"""ProgramRun: a program on a cluster. Its arena runs in this process; engines and a learner are actors."""

import asyncio
from dataclasses import replace
from time import perf_counter
from typing import Any

from rich.console import Console

from selfplay.config.settings import Config
from selfplay.core import TrainingRecord
from selfplay.core.files import copy_directory
from selfplay.learning.adapter_names import TRAINED
from selfplay.record.sinks import JsonlSink
from selfplay.record.tracker import Tracker
from selfplay.replay.rollout_log import RolloutLog
from selfplay.runtime import assembly
from selfplay.runtime.answer_figures import answer_figures
from selfplay.runtime.overlap import staleness_shares
from selfplay.runtime.program_source import ProgramSource
from selfplay.runtime.programs import build_program, policies_of
from selfplay.runtime.progress import RunProgress, print_ending, print_stopped
from selfplay.runtime.progress_views import print_line
from selfplay.runtime.ray.cluster_run import ClusterRun
from selfplay.runtime.ray.engine_client import EngineClient
from selfplay.runtime.ray.engine_host import AdapterRef
from selfplay.runtime.ray.places import Places
from selfplay.runtime.ray.program_actors import ProgramParts
from selfplay.runtime.ray.program_learner import SavedStep, step_directory
from selfplay.runtime.report import rebuild
from selfplay.runtime.run_directory import RunDirectory, delete_after
from selfplay.runtime.source import SourceParts
from selfplay.runtime.update_figures import learned_figures, turn_figures

LOOK_EVERY = 0.5


class ProgramRun(ClusterRun[ProgramParts]):
    """See the module.

    Each step is saved with the state of arena and tracker before its metrics are written, so a command that
    is killed at any moment writes the same lines when it is resumed.
    """

    def __init__(self, config: Config, directory: RunDirectory, console: Console) -> None:
        super().__init__(config, directory, console)
        arena = build_program(config)
        assert arena is not None
        self.arena = arena
        self.policies = policies_of(arena)
        self.metrics = JsonlSink(directory.metrics_file)
        sinks = assembly.build_sinks(config, self.metrics, directory.path)
        self.tracker = Tracker(directory.path.name, sinks=sinks)
        self.rollout_log = RolloutLog(directory.rollouts)
        self.answers: dict[str, float] = {}

    def build_parts(self, places: Places) -> ProgramParts:
        """Start the actors."""
        run, epoch = self.directory.path.absolute(), self.directory.epoch
        return ProgramParts(self.config, run, places, self.policies, epoch)

    async def prepare(self, parts: ProgramParts) -> None:
        """Connect the arena with the engines, and load the last saved step."""
        self.client = EngineClient(parts.engines, patience=self.config.ray.patience, adapters_only=True)
        results = {policy: f"result of {policy}" for policy in self.policies}
        self.source = ProgramSource(
            SourceParts(self.config, self.directory, self.tracker, self.rollout_log, results),
            self.arena,
            self.client,
        )
        self.saved: SavedStep = await parts.learner.saved.remote()
        for note in self.saved.notes:
            print_line(self.console, note)
        if self.saved.notice is not None:
            print_line(self.console, self.saved.notice)

    async def train(self, parts: ProgramParts, progress: RunProgress) -> None:
        """Play, learn and save in turns."""
        await self.source.startup()
        looking = asyncio.create_task(self._show_who_is_away(progress))
        try:
            await self._begin(parts, progress)
            while self.saved.step < self.config.learning.steps and not self.stopping:
                await self._update(parts, progress)
            if self.stopping:
                await self._keep_checkpoint()
        finally:
            looking.cancel()
            await self.source.shutdown()
            await self.client.close()
        self.tracker.close()

    async def finish(self, parts: ProgramParts) -> None:
        """Print how the run ended, and where its results are."""
        step = self.saved.step
        if step < self.config.learning.steps:
            print_stopped(self.console, step, self.config.learning.steps, self.directory.path)
            return
        self.directory.check_epoch()
        report = rebuild(self.directory.path)
        print_ending(
            self.console,
            self.source.ending(),
            [*self.source.account_lines(), f"trained on: {self.saved.trained_records} records"],
            adapters=assembly.adapter_paths(self.directory.checkpoint(step), self.policies),
            report=report,
            next_command=self.source.next_command(),
        )

    async def _begin(self, parts: ProgramParts, progress: RunProgress) -> None:
        """Continue after the saved step; delete everything that was written later."""
        self.directory.check_epoch()
        step, state = self.saved.step, self.saved.state
        self._serve()
        self.rollout_log.truncate_after(step)
        self.directory.truncate_after(step)
        delete_after(self.directory.checkpoints, step)
        self.metrics.truncate(state.get("metrics_offset", 0))
        if not step:
            self.source.begin()
            progress.say("evaluating the untrained model")
            await self._evaluate(parts, progress, full=True)
            await self._keep_checkpoint()
            progress.updated(0, {})
            return
        self.source.load_state_dict(state["source"])
        self.tracker.load_state_dict(state["tracker"])
        self.console.print(f"continuing from update {step} of {self.config.learning.steps}")
        await self._tell(parts, progress)

    async def _update(self, parts: ProgramParts, progress: RunProgress) -> None:
        started = perf_counter()
        try:
            records = await self.source.collect(self.saved.step, progress)
        finally:
            self._check_engines()
        seconds = perf_counter() - started
        for policy, of_policy in records.items():
            acted = [record.policy_version for record in of_policy]
            self.tracker.log(staleness_shares(acted, self.saved.versions[policy]))
        self.answers = answer_figures(one for of_policy in records.values() for one in of_policy)
        self.tracker.log(self.answers)
        self.source.log()
        await self._log_engines(parts)
        state: dict[str, Any] = {
            "source": self.source.state_dict(),
            "tracker": self.tracker.state_dict(),
            "metrics_offset": self.metrics.offset(),
            "play_seconds": seconds,
            "played": progress.played,
        }
        step = self.saved.step + 1
        progress.say("learning")
        self.saved = await parts.learner.update.remote(step, to_learn_from(records), state)
        self._serve()
        await self.source.learned(step)
        await self._tell(parts, progress)

    async def _tell(self, parts: ProgramParts, progress: RunProgress) -> None:
        """Write the metrics of the saved step; evaluate it and keep a checkpoint if either is due."""
        saved, config = self.saved, self.config
        learned = learned_figures(saved.learned, alone=len(self.policies) == 1)
        self.tracker.log(learned)
        self.tracker.log(
            turn_figures(
                saved.learned, saved.state["play_seconds"], saved.learn_seconds, saved.state["played"]
            )
        )
        progress.updated(saved.step, self.answers | learned)
        every, ends = config.evaluation.every, saved.step == config.learning.steps
        if ends or (every and saved.step % every == 0):
            progress.say("evaluating")
            await self._evaluate(parts, progress, full=ends)
        self.directory.check_epoch()
        progress.warn(saved.step, self.tracker.flush(saved.step))
        if ends or saved.step % config.run.save_every == 0:
            await self._keep_checkpoint()

    async def _log_engines(self, parts: ProgramParts) -> None:
        for number, engine in enumerate(parts.engines):
            load = await engine.load.options(max_task_retries=-1).remote()  # it may only be away for a moment
            self.tracker.log_inference(f"Engine-{number}", [], load)

    async def _show_who_is_away(self, progress: RunProgress) -> None:
        said = ""
        while True:
            away = ", ".join(f"{name} is away" for name in self.watchman.away)
            if away != said:
                progress.say(away)
                said = away
            await asyncio.sleep(LOOK_EVERY)

    def _serve(self) -> None:
        """Play with the saved adapters."""
        refs = {
            policy: AdapterRef(policy, self.saved.versions[policy], self.saved.adapters[policy])
            for policy in self.policies
        }
        self.client.adapters |= refs
        self.client.policy = refs.get(TRAINED, AdapterRef(TRAINED, self.saved.step, None))

    async def _evaluate(self, parts: ProgramParts, progress: RunProgress, *, full: bool) -> None:
        self.directory.check_epoch()
        results: dict[str, str | None] = await parts.learner.results.remote()
        for policy, path in results.items():
            name = self.source.parts.results[policy]
            self.client.adapters[name] = AdapterRef(name, self.saved.versions[policy], path)
        started = perf_counter()
        try:
            summary = await self.source.evaluate(self.saved.step, full=full, progress=progress)
        finally:
            self._check_engines()
        seconds = perf_counter() - started
        self.tracker.add({"time/evaluation_seconds": seconds})
        progress.evaluated(self.saved.step, summary, seconds)

    def _check_engines(self) -> None:
        """Raise the fatal error of an engine: episodes would treat it as their own failure.

        Raises:
            SelfplayError: the engine's error, or that the engine is lost.
        """
        if self.client.fatal is not None:
            raise self.client.fatal

    async def _keep_checkpoint(self) -> None:
        """Copy the saved step to the user-facing checkpoints."""
        self.directory.check_epoch()
        await asyncio.to_thread(self._copy_checkpoint)
        self.directory.prune_checkpoints(self.config.run.keep_checkpoints)

    def _copy_checkpoint(self) -> None:
        saved = step_directory(self.directory.path, self.saved.step)
        copy_directory(saved, self.directory.checkpoint(self.saved.step))


def to_learn_from(records: dict[str, list[TrainingRecord]]) -> dict[str, list[TrainingRecord]]:
    """Return records without the program's own notes, whose classes another process may not know."""
    return {policy: [replace(one, meta={}) for one in some] for policy, some in records.items()}
