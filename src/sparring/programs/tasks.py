"""Tasks: lists of questions with right answers, what of an answer counts, and the episode that asks one."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparring.core import Arena, Episode, EpisodeError, EpisodeState, InputError, Rollout, Rubric, derive_seed
from sparring.core.answers import last_number, number_of, same_formula, stated_answer
from sparring.core.played import finite_number

ANSWERER = "model"
"""The role of whoever is asked in an evaluation."""
RIGHT = 1.0
"""An answer with at least this score is right; a smaller score is partial credit."""
_STATED = "Think step by step. End with one line of this form:\nThe answer is: ..."


@dataclass(frozen=True)
class TaskQuestion:
    """A question, its right answer, and the row of data that it comes from."""

    text: str
    answer: str
    row: dict[str, Any] = field(default_factory=dict, compare=False)


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

    async def grade(self, number: int, answer: str) -> float:
        """Return the score, which may take a while: other episodes go on meanwhile."""
        return self.score(number, answer)

    def asked(self, number: int) -> "Asked":
        """Return a question as the artifact of an episode."""
        return Asked(number, self.questions[number].text, self.questions[number].answer)


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


class OwnScores(Task):
    """Questions whose answers a function of your own scores.

    The question is the whole prompt. The function is called with what was said and the question's row, and
    returns a number from 0 to 1.
    """

    def __init__(self, questions: Sequence[TaskQuestion], score: Callable[..., object], name: str) -> None:
        self.questions = questions
        self._score = score
        self._name = name

    def prompt(self, number: int) -> str:
        """Return the question."""
        return self.questions[number].text

    def read(self, number: int, said: str) -> str | None:
        """Return all that is said."""
        return said.strip() or None

    def score(self, number: int, answer: str) -> float:
        """Return the function's score; raise an EpisodeError if it is not a number from 0 to 1."""
        source = f"what {self._name} returned"
        score = finite_number(self._score(answer, self.questions[number].row), source)
        if not 0 <= score <= 1:
            raise EpisodeError(f"{source} is {score:g}, not a number from 0 to 1")
        return score


@dataclass(frozen=True)
class Asked:
    """The artifact of an episode: one question."""

    number: int
    question: str
    answer: str


class TaskEpisode(Episode):
    """One question and the answer of a role, which the rubric scores."""

    episode_type = "task"

    def __init__(self, task: Task, role_id: str = ANSWERER) -> None:
        self.task = task
        self.role_id = role_id
        self._rubric = Rubric([self.scored])

    @property
    def rubric(self) -> Rubric:
        """The score is the reward."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Asked, state: EpisodeState | None = None) -> EpisodeState:
        """Ask the question."""
        state = state or EpisodeState()
        messages = arena.get_role(self.role_id).build_messages(self.task.prompt(artifact.number))
        response = await self.call_model(self.role_id, messages, arena)
        state.trajectory.append(response.to_step(self.role_id, messages, tokens=len(response.drawn or [])))
        state.data["read"] = self.task.read(artifact.number, response.text)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the answer that was read."""
        return dict(state.data)

    async def scored(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the score of the answer that was read."""
        read = rollout.extras["read"]
        return {self.role_id: 0.0 if read is None else await self.task.grade(rollout.artifact.number, read)}


def hold_out(
    questions: Sequence[str], test_size: float, seed: int, field: str
) -> tuple[list[int], list[int]]:
    """Return the places of questions to train on and of those to test, in a drawn order.

    ``test_size`` is the share of the different questions that is for testing. Questions that differ only in
    case or white space are the same one, so they are never in both.
    """
    places: dict[str, list[int]] = {}
    for place, question in enumerate(questions):
        places.setdefault(question_key(question), []).append(place)
    keys = sorted(places)
    if len(keys) < 2:
        raise InputError(field, "there are no two different entries, so none can be held out", "Give more")
    random.Random(derive_seed(seed, "split")).shuffle(keys)
    tests = min(max(1, round(test_size * len(keys))), len(keys) - 1)
    train, test = [[place for key in part for place in places[key]] for part in (keys[tests:], keys[:tests])]
    return train, test


def in_turns(places: Sequence[int], seed: int, update: int, size: int, each: int) -> list[int]:
    """Return ``size`` places for an update, ``each`` of them that many times.

    All places come once, in a drawn order, before one comes again in a later place or update; the first
    update is 0.
    """
    count = math.ceil(size / each)
    first, found = update * count, list[int]()
    for turn in range(first // len(places), (first + count - 1) // len(places) + 1):
        order = random.Random(derive_seed(seed, "order", turn)).sample(places, len(places))
        begin = turn * len(places)
        found += order[max(first - begin, 0) : first + count - begin]
    return [found[place // each] for place in range(size)]


def question_key(question: str) -> str:
    """Return a question in lower case with single spaces."""
    return " ".join(question.lower().split())
