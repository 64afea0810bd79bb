"""Settings of arena programs: conversations of several roles, in place of games."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from selfplay.config.base import Settings
from selfplay.core import InputError


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
    path: str
    """File, relative to the configuration's, and class: `my_program.py:MyArena`."""
    options: dict[str, Any] = {}
    """Passed to the class by name."""

    @field_validator("path")
    @classmethod
    def _file_and_class(cls, path: str) -> str:
        if not re.fullmatch(r".+\.py:\w+", path):
            raise InputError(
                "program.path", f"{path!r} names no class", "Give file and class: my_program.py:MyArena"
            )
        return path


class DebateSettings(Settings):
    """Two sides argue about a topic; a judge, who is not trained, names the winner."""

    type: Literal["debate"]
    """Names this kind of program."""
    topics: list[str] = Field(min_length=1)
    """Motions; each debate draws one."""
    batch_size: int = Field(default=8, ge=1)
    """Debates of an update."""
    debates_per_topic: int = Field(default=4, ge=1)
    """How many of them share a topic and are compared with each other."""
    num_rounds: int = Field(default=3, ge=1)
    """How often each side speaks."""
    max_tokens: int = Field(default=128, ge=1)
    """Most tokens of a speech."""
    aff_policy: str = "default"
    """The policy that argues for the motion."""
    neg_policy: str = "default"
    """The policy that argues against it; another name gives it an adapter of its own."""
    judge_model: str = "base"
    """Who judges: `base` is the untrained model."""
    judge_by_score: bool = False
    """Judge by the likelihood of either verdict, which models too weak to write one can do."""
    on_judge_failure: Literal["fail", "draw"] = "fail"
    """A debate without a verdict fails, or is a draw; either way the judge's failure is counted."""
    evaluation_topics: list[str] | None = None
    """Motions of the evaluation; the training's if not given."""
    evaluation_debates: int = Field(default=32, ge=1)
    """Debates of each evaluation."""


class ProposerSolverSettings(Settings):
    """A proposer writes questions that its solvers get right as often as wrong."""

    type: Literal["proposer_solver"]
    """Names this kind of program."""
    batch_size: int = Field(default=32, ge=1)
    """Proposals of an update."""
    proposals_per_prompt: int = Field(default=16, ge=1)
    """How many of them share a prompt and are compared with each other."""
    examples: int = Field(default=8, ge=0)
    """Questions shown to the proposer as examples."""
    solver_rollouts: int = Field(default=8, ge=1)
    """How often each question is asked."""
    asked_again: int = Field(default=0, ge=0)
    """Stored questions that are asked again in each update, good ones more often."""
    target_pass_rate: float = Field(default=0.5, gt=0, lt=1)
    """The share of right answers at which a question is worth most."""
    proposer_policy: str = "proposer"
    """The policy that writes questions."""
    solver_policy: str = "solver"
    """The policy that answers them."""
    train_solvers: bool = True
    """Whether the solver learns too."""
    evaluation_proposals: int = Field(default=64, ge=1)
    """Proposals of each evaluation."""
    store_size: int = Field(default=500, ge=1)
    """Most questions kept."""


Program = Annotated[DebateSettings | ProposerSolverSettings | PythonProgram, Field(discriminator="type")]
