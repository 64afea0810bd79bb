"""Where questions come from, how answers to them are scored, and the tasks of evaluations."""

import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from sparring.config.base import MOST_SEED, FilePath, Name, Settings, at_field
from sparring.config.facts import CLASS_FILE, Needs, Relative
from sparring.core import InputError
from sparring.core.own_code import is_class_path, name_of, with_file

BUNDLED_TASKS = ("arithmetic", "sums")
"""The questions that ship with the package."""
HUB_TASKS = {"gsm8k": ("openai/gsm8k", "main"), "math500": ("HuggingFaceH4/MATH-500", None)}
"""The datasets of the Hugging Face Hub that have names of their own, and their configurations."""
GENERATED = "reasoning_gym:"
"""Before the name of a dataset that reasoning-gym generates."""
FILE_END = ".jsonl"
EXACT = "exact"
"""The score of answers that are the same as the right one, up to the way they are written."""
TESTS = "tests"
"""The score of answers that are programs, and the field of a row with their tests."""
TRAINED_SPLIT, TASK_SPLIT = "train", "test"
"""The parts of a dataset that programs and tasks read by default."""


def _with_file(text: str, change: Callable[[str], str]) -> str:
    if is_class_path(text):
        return with_file(text, change)
    path = change(text)
    return path if text.endswith(FILE_END) or ("/" in text and os.path.isdir(path)) else text


QUESTIONS = Relative(_with_file)


class QuestionColumns(Settings):
    """Which columns of the data are which."""

    question: Name = "question"
    """The question."""
    answer: Name = "answer"
    """The right answer: a number, or a text, of which only what follows `####` or stands in `\\boxed{}`
    counts where it has that."""


class QuestionSource(Settings):
    """Where questions come from."""

    name: Annotated[FilePath, QUESTIONS]
    """`arithmetic` (64 questions that ship with the package), `sums` (400, from 1 + 1 to 20 + 20, for models
    that are too small for others), `reasoning_gym:NAME` (a dataset that
    reasoning-gym generates; needs the extra `tasks`), `gsm8k`, `math500` or another dataset of the Hugging
    Face Hub such as `openai/gsm8k`, a directory of its files such as `./data` (need the extra `datasets`), a
    JSON Lines file (`my_tasks.jsonl`), or a function of your own that returns such lines
    (`mine.py:questions`). Files are relative as in `envs.id`."""
    columns: QuestionColumns | None = None
    """Which columns of a dataset, or fields of a line, are which; known for `gsm8k` and `math500`."""
    subset: Name | None = None
    """The dataset's configuration, such as `main`."""
    split: Name | None = None
    """The part of a dataset that is read: by default `test` for a task, else `train`."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        known = (*BUNDLED_TASKS, *HUB_TASKS)
        if name in known or name.endswith(FILE_END) or is_class_path(name) or "/" in name:
            return name
        if name.startswith(GENERATED) and name != GENERATED:
            return name
        close = get_close_matches(name, known, n=1)
        every = f"{', '.join(known)}, {GENERATED}NAME, OWNER/DATASET, a .jsonl file or FILE.py:FUNCTION"
        fix = f"Did you mean {close[0]}?" if close else f"Use {every}"
        raise at_field(f"there is no task {name[:60]!r}", fix)

    @property
    def is_dataset(self) -> bool:
        """Whether the package ``datasets`` reads the questions."""
        is_file = self.name.endswith(FILE_END) or is_class_path(self.name)
        return self.name in HUB_TASKS or ("/" in self.name and not is_file)

    @property
    def dataset(self) -> tuple[str, str | None]:
        """The dataset's full name and its configuration."""
        name, subset = HUB_TASKS.get(self.name, (self.name, None))
        return name, self.subset or subset

    def has_questions_of(self, task: "QuestionSource") -> bool:
        """Whether the questions are a task's own; of a dataset, other subsets and splits are others."""
        if not self.is_dataset:
            return task.name == self.name and not self.name.startswith(GENERATED)
        return self.dataset == task.dataset and (self.split or TRAINED_SPLIT) == (task.split or TASK_SPLIT)

    @property
    def label(self) -> str:
        """The name in figures: that of a file, a function or a dataset without what is before it."""
        return self.name if self.name.startswith(GENERATED) else Path(name_of(self.name)).name


class ScoreSettings(Settings):
    """How answers are scored."""

    score: Annotated[FilePath | None, CLASS_FILE, Needs("wasmtime", "code", (TESTS,))] = None
    """`exact` (the stated answer is the right one), `tests` (the answer is a block of Python that passes the
    `tests` of its row in a sandbox; needs the extra `code`), or a function of your own, such as
    `mine.py:score`. By default reasoning-gym's own for its datasets, else `exact`.

    A row's `tests` are `["assert f(2) == 4"]`, with a literal on the right, or `["assert abs(f(2) - 4) <
    1e-6"]`, or `[{"input": [2], "output": 4}]` beside `"function": "f"`; it needs no answer. The sandbox is
    a recent CPython of 32 bits with the modules of the standard library that need no files, clock, entropy
    or network, such as `collections`, `heapq`, `re` and `datetime`. Lines under `if __name__ == "__main__"`
    do not run."""

    @field_validator("score")
    @classmethod
    def _score_is_known(cls, score: str | None) -> str | None:
        if score in (None, EXACT, TESTS) or is_class_path(score):
            return score
        raise at_field(f"there is no score {score[:60]!r}", f"Use {EXACT}, {TESTS} or FILE.py:FUNCTION")


class HeldOutSettings(Settings):
    """How much is kept for evaluations."""

    test_size: float = Field(default=0.2, ge=1e-9, lt=1)
    """The share of the questions that is held out for evaluations."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Decides what is made, drawn and held out. The run's seed does not, so runs can be compared."""


class SplitQuestions(QuestionSource, HeldOutSettings):
    """Questions of which some are held out."""

    count: int | None = Field(default=None, ge=2, le=10_000_000)
    """Number of questions, the held-out ones included; by default all of them, and 1000 where they are
    generated."""


def named(kind: type[QuestionSource]) -> BeforeValidator:
    """Let a name stand for a table of this kind that has no other field."""
    return BeforeValidator(_as_table, json_schema_input_type=str | kind)


def _as_table(entry: Any) -> Any:
    return {"name": entry} if isinstance(entry, str) else entry


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
