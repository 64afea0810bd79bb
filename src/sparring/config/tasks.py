"""Tasks: lists of questions that evaluations ask and training never sees."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from sparring.config.base import FilePath, Settings, at_field
from sparring.config.facts import Relative
from sparring.core import InputError

BUNDLED_TASK = "arithmetic"
"""The task that ships with the package."""
HUB_TASKS = ("gsm8k", "math500")
"""The tasks that are datasets of the Hugging Face Hub."""
GENERATED = "reasoning_gym:"
"""Before the name of a dataset that reasoning-gym generates."""
FILE_END = ".jsonl"


def _absolute(text: str, directory: Path) -> str:
    is_file = text.endswith(FILE_END)
    return os.path.abspath(directory / os.path.expanduser(text)) if is_file else text


TASK = Relative(_absolute)


class TaskSettings(Settings):
    """A task, and how its questions are asked."""

    name: Annotated[FilePath, TASK]
    """`arithmetic` (64 questions that ship with the package), `reasoning_gym:NAME` (a dataset that
    reasoning-gym generates; needs the extra `tasks`), `gsm8k` or `math500` (from the Hugging Face Hub; needs
    the extra `datasets`), or a JSON Lines file of your own (`my_tasks.jsonl`), relative as in `envs.id`."""
    questions: int = Field(default=200, ge=2, le=1_000_000)
    """Number of questions, the same in every evaluation of every run, or all of them if there are fewer."""
    every: int | None = Field(default=None, ge=0, le=10_000_000)
    """Number of updates after which the questions are asked again during training; 0 for before and after
    it only. By default `evaluation.every`."""
    max_tokens: int = Field(default=512, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens, a thought included."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature; by default `evaluation.temperature`."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        known = (BUNDLED_TASK, *HUB_TASKS)
        if name in known or name.endswith(FILE_END):
            return name
        if name.startswith(GENERATED) and name != GENERATED:
            return name
        close = get_close_matches(name, known, n=1)
        every = f"{', '.join(known)}, {GENERATED}NAME or a .jsonl file"
        fix = f"Did you mean {close[0]}?" if close else f"Use {every}"
        raise at_field(f"there is no task {name[:60]!r}", fix)

    @property
    def label(self) -> str:
        """The task's name in figures: that of a file without its directory."""
        return Path(self.name).name if self.name.endswith(FILE_END) else self.name


def _as_table(entry: Any) -> Any:
    return {"name": entry} if isinstance(entry, str) else entry


_Task = Annotated[TaskSettings, BeforeValidator(_as_table, json_schema_input_type=str | TaskSettings)]
Tasks = Annotated[list[_Task], Field(max_length=1000), TASK]
"""Tasks, each a table or only its name."""


def check_labels_differ(tasks: Iterable[TaskSettings]) -> None:
    """Raise an InputError if two tasks have the same name in figures."""
    labels = [task.label for task in tasks]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError("evaluation.tasks", f"two entries are called {twice[0]}", "Rename or merge them")
