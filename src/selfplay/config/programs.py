"""Settings of arena programs: conversations of several roles, in place of games."""

from typing import Annotated, Any, Literal

from pydantic import Field

from selfplay.config.base import Settings


class CreditSettings(Settings):
    """How the rewards of a program become advantages."""

    type: Literal["grpo", "rae", "episodic"] = "grpo"
    """Relative to the group's mean, to a moving baseline of the role, or the reward itself."""
    normalize: bool = False
    """GRPO: divide by the group's standard deviation."""
    positive_only: bool = False
    """GRPO: negative advantages become 0."""
    decay: float = Field(default=0.95, ge=0, lt=1)
    """RAE: how much of the baseline stays."""


class PythonProgram(Settings):
    """A program of your own: a subclass of Arena in a file."""

    type: Literal["python"]
    """Names this kind of program."""
    path: str = Field(pattern=r"^.+\.py:\w+$")
    """File and class: `my_program.py:MyArena`."""
    options: dict[str, Any] = {}
    """Passed to the class by name."""


class DebateSettings(Settings):
    """Two sides argue about a topic; a judge, who is not trained, names the winner."""

    type: Literal["debate"]
    """Names this kind of program."""


class ProposerSolverSettings(Settings):
    """A proposer writes questions that its solvers get right as often as wrong."""

    type: Literal["proposer_solver"]
    """Names this kind of program."""


Program = Annotated[DebateSettings | ProposerSolverSettings | PythonProgram, Field(discriminator="type")]
