"""Ask any model, adapter or run the questions of tasks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparring.commands.member_sampling import member_calls, split_sampling
from sparring.commands.model_source import ModelSource, adapters_in, find_model, with_template_options
from sparring.commands.serving import build_engine
from sparring.config.model import InferenceSettings
from sparring.config.population import EvaluationSettings
from sparring.config.problems import read_settings
from sparring.config.questions import QUESTIONS, TaskSettings
from sparring.core import Arena, CallSettings, InputError, derive_seed
from sparring.core.adapters import BASE
from sparring.core.own_code import resolving
from sparring.evaluation.match import Progress
from sparring.evaluation.results import failures_text
from sparring.evaluation.task_result import TaskResult
from sparring.evaluation.tasks import ask_task
from sparring.programs.task_sources import load_task
from sparring.run.run_names import find_mixture
from sparring.run.task_evaluations import calls_of_task


def evaluate_tasks(
    name: str,
    tasks: Sequence[str],
    questions: int | None = None,
    *,
    seed: int | None = None,
    temperature: float | None = None,
    template_options: str | None = None,
    progress: Progress | None = None,
) -> list[TaskResult]:
    """Ask the questions of tasks; of a run with several policies, each answers.

    What is not given is as in the run: a task of its configuration is asked as its evaluations ask it, so a
    checkpoint that they measured has the same answers.

    Args:
        name: a run, a checkpoint, an adapter or a base model; how it draws may stand behind it.
        tasks: the tasks' names, as in ``evaluation.tasks``.
        questions: number of questions of each task.
        template_options: those of the chat template, as a table of TOML.

    Raises:
        InputError: there is no such model or task, or no question of a task could be asked.
    """
    progress = progress or Progress()
    bare, written = split_sampling(name)
    if find_mixture(bare) is not None:
        raise InputError("MODEL_OR_RUN", f"{bare} is a mixture, which plays games", "Name one of its members")
    source = find_model(bare)
    base = with_template_options(source.model, template_options)
    inference, evaluation, known, own_seed = _settings(source)
    seed = own_seed if seed is None else seed
    chosen = [_task(one, questions, known) for one in dict.fromkeys(tasks)]
    loaded = [load_task(one, "--task") for one in chosen]
    calls = member_calls(written, source.model.name, "MODEL_OR_RUN").over(CallSettings(temperature))
    adapters = {} if source.adapter is None else adapters_in(source.adapter)
    engine = build_engine(base, adapters, inference, seed, progress)
    results = []
    for settings, task in zip(chosen, loaded, strict=True):
        drawn = calls.over(calls_of_task(settings, inference, evaluation, source.model.name))
        for policy in adapters or [BASE]:
            label = settings.label if len(adapters) < 2 else f"{settings.label}, {policy}"
            with progress.doing(f"asking {label}", "questions", len(task.questions)) as answered:
                asked = ask_task(
                    Arena(engine, max_calls=inference.max_queue),
                    task,
                    label,
                    policy,
                    drawn,
                    derive_seed(seed, "task", settings.label),
                    answered,
                )
                result, _ = asyncio.run(asked)
            if not result.answered:
                problem = f"no question of {label} could be asked: {failures_text(result.failure_reasons)}"
                raise InputError("--task", problem, "Choose a model with a longer context, or another task")
            results.append(replace(result, model=name))
    return results


def _settings(source: ModelSource) -> tuple[InferenceSettings, EvaluationSettings, list[TaskSettings], int]:
    """Return how a run's model answers and is measured, the run's tasks and its seed; else the defaults."""
    if source.config is None:
        return InferenceSettings(), EvaluationSettings(), [], 0
    config = source.config
    return config.inference, config.evaluation, config.evaluation.tasks, config.seed


def _task(name: str, questions: int | None, known: Sequence[TaskSettings]) -> TaskSettings:
    """Return a task as the run asks it, or with the default settings."""
    content = {"name": QUESTIONS.with_file(name, resolving(Path()))}
    try:
        given = read_settings(TaskSettings, content)
    except InputError as error:
        raise InputError("--task", error.problem, error.fix) from error
    found = next((one for one in known if one.name == given.name), given)
    return found if questions is None else found.model_copy(update={"questions": questions})
