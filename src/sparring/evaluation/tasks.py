"""Ask a model the questions of a task."""

from collections.abc import Callable

from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    EpisodeRequest,
    GenerateResult,
    Role,
    Rollout,
    derive_seed,
)
from sparring.evaluation.task_result import TaskResult
from sparring.programs.tasks import ANSWERER, Task, TaskEpisode


async def ask_task(
    arena: Arena,
    task: Task,
    label: str,
    model: str,
    calls: CallSettings,
    seed: int,
    on_answer: Callable[[int, int], None] | None = None,
) -> tuple[TaskResult, list[Rollout]]:
    """Ask a model every question of a task once; return the result and the rollouts, in order of questions.

    The result does not depend on the order in which answers come.

    Args:
        arena: has the client and the limits; its roles and episodes are replaced.
        task: the questions.
        label: the task's name in figures.
        model: the client's name of the model.
        calls: how answers are drawn and read.
        seed: determines everything except the model's weights.
        on_answer: called after every answer with the number of answers and of questions.
    """
    answered = 0

    def count(_: GenerateResult) -> None:
        nonlocal answered
        answered += 1
        if on_answer is not None:
            on_answer(answered, len(task.questions))

    arena.add_role(Role(ANSWERER))
    arena.add_episode("task", TaskEpisode(task))
    arena.on_result = count
    agent = AgentSpec("model", model, **vars(calls))
    requests = [
        EpisodeRequest(
            "task",
            task.asked(number),
            {"seed": derive_seed(seed, "question", number), "rollout_id": f"{label}-{number:05d}"},
            is_trainable=False,
            agents={ANSWERER: agent},
        )
        for number in range(len(task.questions))
    ]
    rollouts = [result.rollout for result in await arena.generate_rollouts(requests)]
    result = TaskResult(
        task=label,
        model=model,
        temperature=1.0 if calls.temperature is None else calls.temperature,
        max_tokens=calls.max_tokens,
        seed=seed,
        sampling=calls.sampling,
    )
    for rollout in rollouts:
        result.add(rollout)
    return result, rollouts
