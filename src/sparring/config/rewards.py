"""From rewards to the learner: transforms, credit and the replay buffer."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparring.config.base import ClassPath, Name, Rule, Settings, at_field, with_own_type
from sparring.config.facts import CLASS_FILE, Only
from sparring.core.credit.assigners import Grouping


class WinDrawLoss(Settings):
    """Final reward: compares the rewards of all players and replaces them with the rewards for a win, draw or
    loss. In a one-player game, the reward is compared with 0."""

    type: Literal["win_draw_loss"] = "win_draw_loss"
    """Names this transform."""
    win: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Reward of each player with the best reward."""
    draw: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Reward of all players if their rewards are equal."""
    loss: float = Field(default=-1.0, ge=-1e6, le=1e6)
    """Reward of every other player."""


class GameRange(Settings):
    """Final reward: divides by half the range of rewards that OpenSpiel states for the game. Other games'
    rewards, TextArena's included, stay as they are."""

    type: Literal["game_range"] = "game_range"
    """Names this transform."""


class RoleAdvantage(Settings):
    """Final reward: subtracts a moving average of the seat's rewards, which is read before it is updated."""

    type: Literal["role_advantage", "role_advantage_by_env"] = "role_advantage_by_env"
    """Whether all environments share the averages, or each has its own. A reward has one baseline, so this
    transform excludes `same_prompt_baseline`, `[credit]` (whose `rae` is the same average) and a critic."""
    tau: float = Field(default=0.05, ge=1e-9, le=1)
    """Weight of the newest reward. SPIRAL uses 0.05, UnstableBaselines 0.001."""


class FormatReward(Settings):
    """Step reward: adds `reward` to well-formed answers and `penalty` to others."""

    type: Literal["reward_for_format"] = "reward_for_format"
    """Names this transform."""
    reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to answers in the format that the template asks for."""
    penalty: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to all other answers; a negative value punishes them."""


class ReasoningReward(Settings):
    """Step reward: adds `reward` to answers after a thought that ended, and `penalty` to others."""

    type: Literal["reward_for_reasoning"] = "reward_for_reasoning"
    """Names this transform."""
    reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to answers that follow a thought."""
    penalty: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to answers without a thought, or with one that did not end; a negative value punishes them."""


class InvalidMovePenalty(Settings):
    """Step reward: adds `penalty` to invalid moves and `reward` to others."""

    type: Literal["penalty_for_invalid_move"] = "penalty_for_invalid_move"
    """Names this transform."""
    reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to valid moves."""
    penalty: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to invalid moves; a negative value punishes them."""


NormalizeType = Literal[
    "normalize_rewards",
    "normalize_rewards_by_env",
    "normalize_rewards_by_role",
    "normalize_rewards_by_turn",
]


class Normalize(Settings):
    """Sampling reward: centres the batch's rewards; with `z_score` also divides by the standard deviation."""

    type: NormalizeType = "normalize_rewards_by_env"
    """What is normalised together: the whole batch, the part of each environment, that of each role in it, or
    the answers of one turn of a game, of which `envs.answers_per_turn` draws several. With
    `rewards.discount = 1`, `normalize_rewards_by_role` is the advantage of MARSHAL, arXiv 2510.15414;
    `normalize_rewards_by_turn` with `z_score` is that of AT-GRPO, arXiv 2510.11062."""
    z_score: bool = False
    """Also divide by the standard deviation."""


class SamePrompt(Settings):
    """Sampling reward: subtracts a baseline, computed from other episodes at the same prompt and seat."""

    type: Literal["same_prompt_baseline"] = "same_prompt_baseline"
    """Names this transform."""


class PythonTransform(Settings):
    """A transform of your own: a subclass of FinalRewardTransform, StepRewardTransform or
    SamplingRewardTransform in a file. A table with a `path` needs no `type`."""

    type: Annotated[Literal["python"], CLASS_FILE]
    """Names this kind of transform."""
    path: Annotated[ClassPath, CLASS_FILE]
    """The file and the class, such as `my_rewards.py:MyTransform`. The file is relative to the configuration
    file and, on the command line, to the working directory."""
    options: dict[Name, Any] = Field(default={}, max_length=100)
    """Keyword arguments for the class, as they are written; `Path(__file__).parent` in your file finds what
    lies beside it."""


FinalReward = Annotated[
    WinDrawLoss | GameRange | RoleAdvantage | PythonTransform,
    Field(discriminator="type"),
    BeforeValidator(with_own_type),
]
StepReward = Annotated[
    FormatReward | ReasoningReward | InvalidMovePenalty | PythonTransform,
    Field(discriminator="type"),
    BeforeValidator(with_own_type),
]
SamplingReward = Annotated[
    Normalize | SamePrompt | PythonTransform, Field(discriminator="type"), BeforeValidator(with_own_type)
]


_BUFFER = Only("uses_buffer", why="the program's episodes go through no buffer")
_NO_CREDIT = Only("credit", (None,), why="credit takes its place")
_NO_CRITIC = Only("learning.critic", (None,), why="learning.critic takes its place")


class RewardSettings(Settings):
    """Reward transforms, of which each list is applied in order, and the discount."""

    final: Annotated[list[FinalReward], _BUFFER] = Field(default=[], max_length=100)
    """Applied to the final rewards of all players of a game, once for each trained player."""
    step: Annotated[list[StepReward], _BUFFER] = Field(default=[], max_length=100)
    """Applied once to each step."""
    sampling: Annotated[list[SamplingReward], _BUFFER, _NO_CREDIT, _NO_CRITIC] = Field(
        default=[SamePrompt()], max_length=100
    )
    """Applied to the training batch."""
    discount: Annotated[float | None, _BUFFER] = Field(default=None, ge=0, le=1)
    """Credits each turn of a player with what the player receives from then on. What it receives after its
    next turn is multiplied by this number, after the turn after that by its square, and so on. A game that
    pays only at its end pays with the player's last turn. By default, each turn is credited with the whole
    game's reward. A critic has a discount of its own, so beside one only 1 is allowed."""

    @property
    def lists(self) -> dict[str, list[FinalReward] | list[StepReward] | list[SamplingReward]]:
        """The lists of transforms, by their names."""
        return {"final": self.final, "step": self.step, "sampling": self.sampling}


def keeps_unit(one: FinalReward | StepReward | SamplingReward) -> bool:
    """Whether an end keeps its reward from update to update, and advantages the unit of rewards.

    What a transform of your own does is not known, so it counts as one that does.
    """
    match one:
        case WinDrawLoss() | GameRange() | FormatReward() | ReasoningReward() | InvalidMovePenalty():
            return True
        case Normalize(z_score=False) | SamePrompt() | PythonTransform():
            return True
    return False


class BufferSettings(Settings):
    """The replay buffer."""

    type: Literal["step", "episode"] = "step"
    """Whether the buffer draws single steps or whole episodes."""
    max_size: int = Field(default=100_000, ge=1, le=1_000_000_000)
    """Maximum number of stored steps."""
    batch_size: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Number of steps (or episodes) in one update; by default the whole buffer."""
    log_batches: bool = True
    """Write each training batch to `batches/`: actor, message, answer and the reward at each stage; beside it
    the advantages that critics give."""


CreditType = Literal[
    "grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "rae", "spo", "episodic", "python"
]
KEEP_UNIT: tuple[CreditType, ...] = ("rloo", "rae", "episodic", "python")
"""Beside `grpo` without `normalize`, the types whose advantages have the unit of rewards."""
_OWN = Only("type", ("python",), refused=True)


class CreditSettings(Settings):
    """How the rewards of the episodes of a program or game become advantages."""

    type: Annotated[CreditType, CLASS_FILE] = "grpo"
    """What is subtracted from a reward: its group's mean (`grpo`), the mean of the other rewards of its group
    (`rloo`), a moving baseline of its role (`rae`), a tracked baseline of its prompt (`spo`), or nothing
    (`episodic`). `reinforce_pp` subtracts the mean of the whole batch and divides by its standard deviation;
    `reinforce_pp_baseline` first subtracts the group's mean. `python` is a credit assigner of your own, and a
    table with a `path` needs no type."""
    path: Annotated[ClassPath | None, CLASS_FILE, _OWN] = None
    """For `python`: the file and the class, such as `my_credit.py:MyCredit`, a subclass of CreditAssigner.
    The file is relative to the configuration file and, on the command line, to the working directory."""
    options: Annotated[dict[Name, Any], _OWN] = Field(default={}, max_length=100)
    """For `python`: keyword arguments for the class, as they are written."""
    group: Annotated[Grouping, Only("type", ("grpo", "rloo", "reinforce_pp_baseline"))] = "seat"
    """For `grpo`, `rloo` and `reinforce_pp_baseline`: whether a group holds the rewards of one role in all
    episodes of one type (`seat`), or its steps whose prompts are the same (`prompt`)."""
    by_role: Annotated[bool, Only("type", ("reinforce_pp",))] = False
    """For `reinforce_pp`: take mean and deviation over one role in episodes of one type."""
    normalize: Annotated[bool, Only("type", ("grpo",))] = False
    """For `grpo`: divide by the group's standard deviation."""
    positive_only: Annotated[bool, Only("type", ("grpo",))] = False
    """For `grpo`: set negative advantages to 0."""
    decay: Annotated[float, Only("type", ("rae",))] = Field(default=0.95, ge=0, lt=1)
    """For `rae`: the factor by which an episode multiplies the old baseline."""
    half_life: Annotated[float, Only("type", ("spo",))] = Field(default=0.06, ge=1e-9, le=1e6)
    """For `spo`: the change of the log-probabilities of answers to a prompt, in nats per token, at which its
    baseline would forget half of what it remembers in one update. What it forgets stays between 4% and
    12.5%."""

    _with_type = model_validator(mode="before")(with_own_type)

    def rules(self) -> Iterable[Rule]:
        """A class of one's own has a path."""
        return (self._a_class_of_ones_own_has_a_path,)

    def _a_class_of_ones_own_has_a_path(self) -> None:
        if self.type == "python" and self.path is None:
            raise at_field("is missing", "Name a file and a class: my_credit.py:MyCredit", "path")

    @property
    def keeps_unit(self) -> bool:
        """Whether advantages have the unit of rewards; a class of your own counts as one that keeps it."""
        return self.type in KEEP_UNIT or (self.type == "grpo" and not self.normalize)
