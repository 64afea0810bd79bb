"""Who plays the roles of a program, and adapters of earlier runs that play or are trained further."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from sparring.config.base import FilePath, Name, Settings, Texts
from sparring.config.play import check_policy_name
from sparring.core.history import History


def _names(adapters: dict[str, str]) -> dict[str, str]:
    for name in adapters:
        check_policy_name(name, "adapters")
    return adapters


Adapters = Annotated[dict[Name, FilePath], Field(max_length=1000), AfterValidator(_names)]
"""Adapters by name: a run's checkpoint (``RUN``, ``RUN@40``, ``RUN@best``), or an adapter's directory."""


def absolute_adapter(text: str, directory: Path) -> str:
    """Return an adapter's path; a name without a directory is a run in ``runs``."""
    place = Path(text) if "/" in text else Path("runs") / text
    return os.path.abspath(directory / os.path.expanduser(place))


class RoleSettings(Settings):
    """A role's settings where they differ from the program's own."""

    policy: Name | None = None
    """The policy that the role plays and trains. With `base`, or a name in `[frozen]`, it is not trained."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature; at least 0.01 for a role that is trained."""
    test_temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature when the program is measured; by default the training temperature. 0 takes the
    most likely token."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens."""
    stop: Texts | None = Field(default=None, max_length=100)
    """Texts that end an answer; they are not part of its text."""
    history: History | None = None
    """What later prompts show of the role's answers: `keep` (as they were drawn), `drop_reasoning` (without
    what is between `<think>` and `</think>`), or `summary` (the latest `<summary>...</summary>` in place of
    everything between the beginning and it)."""
