"""Ask the tasks of a run: questions that it never trains on, each task at its own pace."""

import contextlib
from collections.abc import Mapping, Sequence

from sparring.collection.rollout_log import write_rollouts
from sparring.config import Config
from sparring.config.model import InferenceSettings
from sparring.config.population import EvaluationSettings
from sparring.config.questions import TaskSettings
from sparring.core import CallSettings, InferenceClient, InputError, derive_seed
from sparring.core.reasoning import checked_tags
from sparring.evaluation.figures import figure_text, figures_of
from sparring.evaluation.results import (
    decoded_evaluation,
    evaluation_path,
    failures_text,
    write_evaluation,
)
from sparring.evaluation.task_result import TaskResult
from sparring.evaluation.tasks import ask_task
from sparring.learn.own_sampling import drawing
from sparring.programs.task_sources import load_task
from sparring.programs.tasks import Task
from sparring.run.assembly import build_arena
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory


class TaskEvaluations:
    """Asks what the training of each policy produces the questions of tasks.

    The client takes up to ``max_calls`` requests at once. It serves the ``results``, the model of each
    policy.
    """

    def __init__(
        self,
        config: Config,
        client: InferenceClient,
        max_calls: int,
        results: Mapping[str, str],
        directory: RunDirectory,
    ) -> None:
        self.config = config
        self.arena = build_arena(config, client, min(config.collection.concurrency, max_calls))
        self.results = results
        self.directory = directory
        self._loaded: dict[str, Task] = {}

    async def run(self, step: int, tasks: Sequence[TaskSettings], progress: RunProgress) -> dict[str, str]:
        """Ask the questions of these tasks after update ``step``; return the accuracies by name.

        Asking again after a kill changes nothing. Raises InputError if the questions cannot be read, or none
        of them could be asked.
        """
        summary = {}
        for settings in tasks:
            task = self._task(settings)
            for policy, model in self.results.items():
                label = settings.label if len(self.results) == 1 else f"{settings.label}, {policy}"
                result = await self._asked(step, settings, task, label, model, progress)
                if reasons := failures_text(result.failure_reasons):
                    progress.warn_of(step, f"questions of {label} failed: {reasons}")
                accuracy, *_ = figures_of(result)
                summary[str(accuracy.name)] = figure_text(accuracy)
        return summary

    async def _asked(
        self, step: int, settings: TaskSettings, task: Task, label: str, model: str, progress: RunProgress
    ) -> TaskResult:
        count, config = len(task.questions), self.config
        with progress.doing(f"{label}: {count} questions", "questions", count) as answered:
            result, rollouts = await ask_task(
                self.arena,
                task,
                label,
                model,
                calls_of_task(settings, config.inference, config.evaluation, config.model.name),
                derive_seed(config.seed, "task", settings.label),
                answered,
            )
        if not result.answered:
            problem = f"no question of {label} could be asked: {failures_text(result.failure_reasons)}"
            raise InputError("evaluation.tasks", problem, "Lower its max_tokens, or leave it out")
        result = self._beside_first(step, label, result)
        self.directory.check_epoch()
        write_evaluation(self.directory.tasks, step, label, result)
        if shown := rollouts[: config.tracking.games_logged]:
            write_rollouts(evaluation_path(self.directory.tasks, step, label, ".jsonl"), step, shown)
        return result

    def _task(self, settings: TaskSettings) -> Task:
        if settings.name not in self._loaded:
            place = self.config.evaluation.tasks.index(settings)
            self._loaded[settings.name] = load_task(settings, f"evaluation.tasks.{place}.name")
        return self._loaded[settings.name]

    def _beside_first(self, step: int, label: str, result: TaskResult) -> TaskResult:
        """Return the result with the change since the evaluation before training, if that can be read. In an
        older run its file may have another name."""
        if not step:
            return result
        for path in sorted(self.directory.tasks.glob("step-000000-*.json")):
            with contextlib.suppress(OSError, ValueError):  # a damaged file
                _, first = decoded_evaluation(path.read_bytes())
                if isinstance(first, TaskResult) and first.task == label:
                    return result.beside(first)
        return result


def calls_of_task(
    settings: TaskSettings, inference: InferenceSettings, evaluation: EvaluationSettings, model: str
) -> CallSettings:
    """Return how answers to a task are drawn and read, by a base ``model``."""
    temperature = evaluation.temperature if settings.temperature is None else settings.temperature
    calls = CallSettings(
        temperature=temperature,
        max_tokens=settings.max_tokens,
        stop=tuple(inference.stop),
        reasoning=checked_tags(inference.reasoning),
        max_reasoning=inference.max_reasoning,
    )
    return calls.over(drawing(evaluation.sampling, model, "evaluation.sampling"))


def tasks_due(config: Config, step: int, *, full: bool) -> list[TaskSettings]:
    """Return the tasks that are due after an update: all of them (``full``) before and after training."""
    settings = config.evaluation
    due = []
    for task in settings.tasks:
        every = settings.every if task.every is None else task.every
        if full or (every and step % every == 0):
            due.append(task)
    return due
