"""The loop of every run: play, learn, publish, measure, keep.

It is the same for games and programs, in one process and on a cluster. They differ in what it works on: a
``Source`` plays (``game_source.py``, ``program_source.py``), ``Learners`` make the updates (``learners.py``),
``RunMetrics`` writes a line for each update (``metrics.py``), and a ``RunDirectory`` says what is kept.
"""

import asyncio
import signal
import sys
from time import perf_counter
from typing import Any

from rich.console import Console

from sparring.config import Config
from sparring.run.assembly import adapter_paths, unit_of_play
from sparring.run.best import has_settled, keep_if_best
from sparring.run.evaluations import comparison_of
from sparring.run.game_source import GameSource
from sparring.run.learners import Learners, Saved
from sparring.run.metrics import RunMetrics, turn_figures
from sparring.run.program_source import ProgramSource
from sparring.run.progress import RunProgress, account_lines, next_command, print_ending, print_stopped
from sparring.run.progress_views import print_line
from sparring.run.run_directory import RunDirectory
from sparring.run.saved_state import RunLogs
from sparring.run.task_evaluations import tasks_due
from sparring.view.report.page import build_report

Source = GameSource | ProgramSource
"""Plays games or a program; the loop sees nothing else of the play."""


class Trainer:
    """Runs the loop.

    Attributes:
        progress: what is shown of the run.
        saved: what is made.
        state: what the loop does: starting, playing, learning, measuring or done.
        stopping: set it to end the run after the current update.
        settled: whether the evaluations no longer find a better policy, which ends the run.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        source: Source,
        learners: Learners,
        metrics: RunMetrics,
        console: Console,
    ) -> None:
        self.config = config
        self.directory = directory
        self.source = source
        self.learners = learners
        self.metrics = metrics
        self.console = console
        self.progress = RunProgress(console, config.learning.steps, *unit_of_play(config))
        self.saved = Saved(0, {}, {})
        self.state = "starting"
        self.stopping = False
        self.settled = False
        self._turn = {"play": 0.0, "played": 0.0}
        self._told: set[str] = set()
        self._logs = RunLogs(directory.path)

    async def run(self) -> None:
        """Train to the end, or until interrupted."""
        await self.source.startup()
        try:
            await self._run()
        finally:
            await self.source.shutdown()

    async def _run(self) -> None:
        if sys.platform != "win32":  # there, Ctrl-C ends the run where it was last saved
            for asked_to_end in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(asked_to_end, self._interrupt)
        with self.progress:
            await self._begin()
            while not (self._is_done() or self.stopping):
                await self._play_and_learn()
                await self.source.publish(self.saved)
                await self._measure_update()
                await self._keep_if_due()
                await self._upload()
        self.state = "done"
        await self.metrics.close()
        await self._finish()

    def _is_done(self) -> bool:
        return self.settled or self.saved.step >= self.config.learning.steps

    async def _begin(self) -> None:
        """Start from the newest saved state, or from scratch."""
        self.directory.check_epoch()
        self.saved = saved = await self.learners.saved()
        self._tell_notes()
        if saved.notice is not None:
            print_line(self.console, saved.notice)
        await self.source.begin(saved, saved.state.get("source", {}))
        self._turn = saved.state.get("turn", self._turn)
        measured = await self.metrics.resume(saved.step, saved.state.get("metrics", {}))
        await self.source.publish(saved)
        if saved.step:
            self.console.print(f"continuing from update {saved.step} of {self.config.learning.steps}")
            if not measured:
                await self._measure_update()
            self._look_whether_settled()
            if not self.directory.checkpoint(saved.step).exists():
                await self._keep_if_due()
        elif not self.directory.checkpoint(0).exists():
            self.progress.say("evaluating before training")
            await self._evaluate(full=True)
            await self._ask(full=True)
            await self._keep()
        await self._upload()
        self.progress.updated(saved.step, {})

    async def _play_and_learn(self) -> None:
        self.state, started = "playing", perf_counter()
        batch = await self.source.play(self.saved, self.progress)
        self._turn = {"play": perf_counter() - started, "played": float(self.progress.played)}
        self.state = "learning"
        self.progress.learning()
        await self.source.rest()
        self.saved = await self.learners.update(self.saved.step + 1, batch, self._state)
        self._tell_notes()

    def _tell_notes(self) -> None:
        for note in self.saved.notes:
            if note not in self._told:
                print_line(self.console, self.config.shown(note))
        self._told.update(self.saved.notes)

    async def _measure_update(self) -> None:
        """Write the update's line, and evaluate if that is due."""
        self.state, saved = "measuring", self.saved
        self.metrics.log(saved.figures)
        self.metrics.log(
            turn_figures(saved.seconds, saved.trained_tokens, **self._turn, overlaps=self.source.overlaps)
        )
        await self.source.log(self._turn["play"])
        stored = {} if self.directory.uploads is None else self.directory.uploads.figures()
        self.metrics.log(stored)
        self.progress.updated(saved.step, saved.figures | stored)
        every = self.config.evaluation.every
        if saved.step == self.config.learning.steps:
            self.progress.say("evaluating the trained model")
            await self._evaluate(full=True)
        elif every and saved.step % every == 0:
            await self._evaluate(full=False)
        await self._ask(full=self._is_done())
        self.directory.check_epoch()
        line = await self.metrics.flush(saved.step)
        self.progress.warn(saved.step, line)
        self.progress.tell_replaced(saved.step, line)

    async def _evaluate(self, *, full: bool) -> None:
        """Evaluate and print; the seconds are logged with this update's metrics, or else the first's.

        What a run ends with is measured in full. If that finds a better policy after all, the run goes on.
        """
        started, settings = perf_counter(), self.config.evaluation
        summary = await self._measure(full=full)
        if self.settled and not full and settings.games > settings.games_during:
            self.progress.say("evaluating the trained model")
            summary = await self._measure(full=True)
        seconds = perf_counter() - started
        self.metrics.add({"time/evaluation_seconds": seconds})
        self.progress.evaluated(self.saved.step, summary, seconds)

    async def _ask(self, *, full: bool) -> None:
        """Ask the questions of the tasks that are due, and print the accuracies."""
        step, due = self.saved.step, tasks_due(self.config, self.saved.step, full=full)
        if not due:
            return
        started = perf_counter()
        summary = await self.source.ask(step, due, self.progress)
        seconds = perf_counter() - started
        self.metrics.add({"time/task_seconds": seconds})
        self.progress.evaluated(step, summary, seconds)

    async def _measure(self, *, full: bool) -> dict[str, str]:
        """Evaluate, keep the best adapters, and look whether the run has settled; return headline figures."""
        summary = await self.source.evaluate(self.saved.step, full=full, progress=self.progress)
        keep_best, write = self.config.run.keep_best, self.learners.write_adapters
        await keep_if_best(self.directory, keep_best, self.saved.step, write)
        self._look_whether_settled()
        return summary

    def _look_whether_settled(self) -> None:
        self.settled = has_settled(self.directory.evaluation, self.config.evaluation)

    async def _keep_if_due(self) -> None:
        if self.saved.step % self.config.run.save_every == 0 or self._is_done() or self.stopping:
            await self._keep()

    async def _keep(self) -> None:
        self.directory.check_epoch()
        await self.learners.keep(self._state)
        self.directory.prune_checkpoints(self.config.run.keep_checkpoints)
        await self.source.kept(self.directory.saved_steps()[0])

    async def _upload(self) -> None:
        """Let the run's store, if it has one, have the run as it is now."""
        if self.directory.uploads is not None:
            line = await asyncio.to_thread(self.directory.uploads.note, self.saved.step)
            if line is not None:
                self.progress.warn_of(self.saved.step, line)

    async def _state(self) -> dict[str, Any]:
        """Return what a resume needs besides the learners."""
        source, metrics = await self.source.state(), await self.metrics.state()
        return {
            "source": source,
            "metrics": metrics,
            "turn": self._turn,
            "config": self.config.model_dump(mode="json"),
            "logs": self._logs.state(),
        }

    def _interrupt(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        self.console.print("finishing this update, then saving; press Ctrl-C again to stop at once")

    async def _finish(self) -> None:
        step, total = self.saved.step, self.config.learning.steps
        if not self._is_done():
            print_stopped(self.console, step, total, self.directory.path)
            return
        if step < total:
            patience = self.config.evaluation.patience
            said = f"{patience} evaluations found no better policy"
            print_line(self.console, f"settled after update {step} of {total}: {said}")
        self.directory.check_epoch()
        print_ending(
            self.console,
            comparison_of(self.directory, self.config),
            [
                *account_lines(await self.source.accounts()),
                f"trained on: {self.saved.trained_records} answers",
            ],
            adapters=adapter_paths(self.directory.checkpoint(step), list(self.saved.versions)),
            report=build_report(self.directory.path),
            next_command=next_command(self.config, self.directory.path),
        )
