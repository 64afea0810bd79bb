"""Tasks: lists of questions with right answers, what of an answer counts, and how they are asked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    Episode,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Role,
    Rollout,
    Rubric,
    derive_seed,
)
from sparring.core.answers import last_number, number_of, same_formula, stated_answer
from sparring.evaluation.task_result import TaskResult

ANSWERER = "model"
"""The role of whoever is asked."""
_STATED = "Think step by step. End with one line of this form:\nThe answer is: ..."


@dataclass(frozen=True)
class TaskQuestion:
    """A question and its right answer."""

    text: str
    answer: str


class Task(ABC):
    """A list of questions and the score of answers to them."""

    questions: Sequence[TaskQuestion]

    @abstractmethod
    def prompt(self, number: int) -> str:
        """Return what the model is asked, with how it is to state its answer."""

    @abstractmethod
    def read(self, number: int, said: str) -> str | None:
        """Return the answer that a text states to a question; ``None`` if it states none."""

    @abstractmethod
    def score(self, number: int, answer: str) -> float:
        """Return the score of an answer between 0 and 1, which is right."""


class ShortAnswers(Task):
    """Questions with short answers: a number, a formula in LaTeX, a few words.

    A text's answer is what it states after ``The answer is:`` or another usual mark (see
    :func:`~sparring.core.answers.stated_answer`), or else, if the right answer is a number, its last number.
    """

    def __init__(self, questions: Sequence[TaskQuestion]) -> None:
        self.questions = questions

    def prompt(self, number: int) -> str:
        """Return the question and the form of the answer."""
        return f"{self.questions[number].text}\n\n{_STATED}"

    def read(self, number: int, said: str) -> str | None:
        """Return the answer that is stated, or the last number."""
        stated = stated_answer(said)
        if not stated and number_of(self.questions[number].answer) is not None:
            return last_number(said)
        return stated or None

    def score(self, number: int, answer: str) -> float:
        """Return 1 for the right answer, else 0."""
        return float(same_formula(answer, self.questions[number].answer))


@dataclass(frozen=True)
class Asked:
    """The artifact of an episode: one question."""

    number: int
    question: str
    answer: str


class TaskEpisode(Episode):
    """One question and its answer, which the rubric scores."""

    episode_type = "task"

    def __init__(self, task: Task) -> None:
        self.task = task
        self._rubric = Rubric([self.scored])

    @property
    def rubric(self) -> Rubric:
        """The score is the reward."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Asked, state: EpisodeState | None = None) -> EpisodeState:
        """Ask the question."""
        state = state or EpisodeState()
        messages = arena.get_role(ANSWERER).build_messages(self.task.prompt(artifact.number))
        response = await self.call_model(ANSWERER, messages, arena)
        state.trajectory.append(response.to_step(ANSWERER, messages, tokens=len(response.drawn or [])))
        state.data["read"] = self.task.read(artifact.number, response.text)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the answer that was read."""
        return dict(state.data)

    def scored(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the score of the answer that was read."""
        read = rollout.extras["read"]
        return {ANSWERER: 0.0 if read is None else self.task.score(rollout.artifact.number, read)}


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
            Asked(number, question.text, question.answer),
            {"seed": derive_seed(seed, "question", number), "rollout_id": f"{label}-{number:05d}"},
            is_trainable=False,
            agents={ANSWERER: agent},
        )
        for number, question in enumerate(task.questions)
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
