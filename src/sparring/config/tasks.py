"""Tasks: lists of questions that evaluations ask and training never sees."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from sparring.config.questions import QUESTIONS, QuestionSource, ScoreSettings, named
from sparring.core import InputError


class TaskSettings(QuestionSource, ScoreSettings):
    """A task, and how its questions are asked."""

    questions: int = Field(default=200, ge=2, le=1_000_000)
    """Number of questions, the same in every evaluation of every run, or all of them if there are fewer."""
    every: int | None = Field(default=None, ge=0, le=10_000_000)
    """Number of updates after which the questions are asked again during training; 0 for before and after
    it only. By default `evaluation.every`."""
    max_tokens: int = Field(default=512, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens, a thought included."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature; by default `evaluation.temperature`."""


Tasks = Annotated[list[Annotated[TaskSettings, named(TaskSettings)]], Field(max_length=1000), QUESTIONS]
"""Tasks, each a table or only its name."""


def check_labels_differ(tasks: Iterable[TaskSettings]) -> None:
    """Raise an InputError if two tasks have the same name in figures."""
    labels = [task.label for task in tasks]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError("evaluation.tasks", f"two entries are called {twice[0]}", "Rename or merge them")
