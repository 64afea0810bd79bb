"""The learner and its critic."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from sparring.config.algorithms import (
    Algorithm,
    MagnetSettings,
    OverAnswersSettings,
    ReinforceSettings,
    with_type,
)
from sparring.config.base import Name, Settings
from sparring.config.facts import Only
from sparring.core import InputError


class CriticSettings(Settings):
    """A value head beside each policy's adapter. Advantages are the part of the return that it did not
    predict; it replaces `credit` and `rewards.sampling`. Rewards are divided by the root mean square of the
    returns so far, so nothing depends on whether a game pays 1 or 13."""

    gamma: float = Field(default=1.0, ge=1e-9, le=1)
    """Discount by which later turns of a role count less. Games end, so they need none."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """How far an advantage looks ahead: with 0 it trusts the value of the role's next turn, with 1 only the
    rewards that were reached."""
    value_learning_rate: float = Field(default=0.1, ge=1e-12, le=10)
    """Constant learning rate of the head: about how far an optimizer step can move a value, in units of that
    root mean square."""
    value_weight: float = Field(default=0.5, ge=0, le=1e6)
    """Weight of the value loss in the gradient of the adapter, whose hidden states the head reads. With 0,
    only the head learns from that loss."""
    value_clip: float | None = Field(default=None, ge=1e-9, le=1e6)
    """How far the loss lets a value move within an update, in the same units; by default any distance."""
    normalize_advantages: bool = False
    """Centre the advantages of the batch, and divide them by their standard deviation."""


class PolicySettings(Settings):
    """The settings of one policy, by its name, where they differ from `[learning]`."""

    algorithm: Algorithm | None = None
    """The policy's algorithm, in place of `learning.algorithm`."""
    critic: CriticSettings | None = None
    """A critic of the policy, in place of `learning.critic`. Other policies may learn without one."""
    epochs: int | None = Field(default=None, ge=1, le=1000)
    """Number of times that an update goes through the policy's records."""
    minibatches: int | None = Field(default=None, ge=1, le=100_000)
    """Number of parts into which the policy's records of an update are divided."""
    learning_rate: float | None = Field(default=None, ge=1e-12, le=1)
    """Learning rate of AdamW after warm-up."""
    learning_rate_end: float | None = Field(default=None, ge=0, le=1)
    """Learning rate at the last update."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """AdamW's first beta."""

    _with_type = field_validator("algorithm", mode="before")(with_type)


class LearningSettings(Settings):
    """The learner."""

    steps: int = Field(default=100, ge=1, le=10_000_000)
    """Number of updates in the whole run."""
    algorithm: Algorithm = ReinforceSettings()
    """The algorithm that policies learn by. A table without `type` is `python` if it has a `path`, and
    `reinforce` otherwise."""
    critic: CriticSettings | None = None
    """A critic for every policy, with any algorithm but `magnet` and `all_actions`. `[learning.critic]`
    without fields has the default values."""
    learning_rate: float = Field(default=1e-4, ge=1e-12, le=1)
    """Learning rate of AdamW after warm-up."""
    learning_rate_end: Annotated[float, Only("schedule", ("cosine", "linear"))] = Field(
        default=5e-6, ge=0, le=1
    )
    """Learning rate at the last update; `schedule` says how it gets there."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate goes from `learning_rate` to `learning_rate_end`. `linear` begins after warm-up.
    With `constant`, it stays at `learning_rate`, and `learning_rate_end` has no effect."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """AdamW's first beta. It is 0 because the policy gradient of an earlier update belongs to earlier
    opponents; `magnet` is tied to the average of many updates, and gains from 0.8."""
    warmup_steps: int = Field(default=4, ge=0, le=10_000_000)
    """Number of updates over which the learning rate rises."""
    loraplus_ratio: float = Field(default=1.0, ge=1e-3, le=1e3)
    """Learning rate of the adapter's second factor, which begins at 0, divided by that of its first (LoRA+,
    arXiv 2402.12354)."""
    grad_clip: float = Field(default=1.0, ge=1e-9, le=1e12)
    """Maximum global L2 norm of the gradient."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Number of times that an update goes through its records."""
    minibatches: int = Field(default=1, ge=1, le=100_000)
    """Number of random parts into which each epoch divides an update's records, with an optimizer step for
    each. With more than one step, an algorithm with a clip is better than `reinforce`."""
    skip_zero_advantages: bool = False
    """Leave out the answers to prompts at which no answer has an advantage, as in a group whose rewards are
    all equal. Means, the regulariser's included, cover the remaining answers. If none remain, all are
    kept."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the adapter's weights; the average is then what is evaluated and kept. 0
    for no average."""
    average_power: Annotated[int, Only("average_decay")] = Field(default=8, ge=0, le=1000)
    """Until the average has that decay, update n counts in proportion to n to this power: 8 covers about the
    last ninth of the updates, 1 about half of them, as in CFR+, and 0 all of them equally, as in fictitious
    play. Where the policy goes round in circles, the average must outlast a round."""
    reference_decay: float = Field(default=0.8, ge=0, lt=1)
    """Decay of the reference, a second running average of the adapter's weights, near which `magnet`,
    `all_actions`, `kl_to = "reference"` and `regulariser = "reference"` keep the policy; 0 for a copy of the
    weights."""
    reference_every: int = Field(default=1, ge=1, le=10_000_000)
    """The reference follows the policy once in this many updates."""
    max_generation_len: int | None = Field(default=None, ge=1, le=1_000_000)
    """Constant normaliser of the loss, in tokens; by default `inference.max_tokens`."""
    max_train_len: int | None = Field(default=None, ge=2, le=10_000_000)
    """Maximum number of tokens of prompt and answer that are trained on; by default there is no limit."""
    max_batch_tokens: int = Field(default=6144, ge=16, le=100_000_000)
    """Maximum number of tokens in one forward pass; larger trees go through the model in sections."""
    max_mismatch: float = Field(default=0.2, ge=1e-9, le=1e6)
    """Mean difference between the engine's and the learner's log-probabilities, in nats per token, above
    which the run stops; for tokens of older versions the limit is 1 nat higher."""
    policies: dict[Name, PolicySettings] = Field(default={}, max_length=1000)
    """Policies with an algorithm, a critic, steps or rates of their own, by name."""

    _with_type = field_validator("algorithm", mode="before")(with_type)

    def of_policy(self, policy: str) -> Self:
        """Return the settings of one policy's learner."""
        own = self.policies.get(policy, PolicySettings())
        given = {name: value for name, value in own if value is not None}
        return self.model_copy(update=given)

    @property
    def rate_ends(self) -> tuple[float, float]:
        """The learning rate after warm-up, and that at the last update."""
        last = self.learning_rate if self.schedule == "constant" else self.learning_rate_end
        return self.learning_rate, last

    def scheduled(self, policies: Iterable[str]) -> list[str]:
        """Return the fields of these policies whose effect changes until the last update."""
        fields = []
        for policy in policies:
            used = self.of_policy(policy)
            if len(set(used.rate_ends)) > 1:
                fields.append(self._field(policy, "learning_rate"))
            if len(set(used.algorithm.regulariser_ends)) > 1:
                fields.append(self._field(policy, "algorithm") + ".regulariser_weight")
        return fields

    @property
    def own_critics(self) -> frozenset[str]:
        """The policies with a critic of their own; with `critic`, all others have one too."""
        return frozenset(name for name, one in self.policies.items() if one.critic is not None)

    def algorithms_of(self, policies: Iterable[str]) -> dict[str, Algorithm]:
        """Return the algorithms of these policies, by the field that names them."""
        return {self._field(name, "algorithm"): self.of_policy(name).algorithm for name in policies}

    def check_policies(self, policies: Iterable[str]) -> None:
        """Raise an InputError unless what each of these policies has fits together."""
        for policy in policies:
            used = self.of_policy(policy)
            field, critic = self._field(policy, "algorithm"), self._field(policy, "critic")
            if isinstance(used.algorithm, OverAnswersSettings):
                fix = "Leave it out, or choose another algorithm"
                if self.skip_zero_advantages:
                    problem = f"is not for {field}, which averages the advantages of all answers"
                    raise InputError("learning.skip_zero_advantages", problem, fix)
                if used.critic is not None:
                    if critic == "learning.critic" and self.policies:
                        fix = "Give it to the policies that use it: [learning.policies.NAME.critic]"
                    problem = f"is of no use to {field}, which has a value for every legal answer"
                    raise InputError(critic, problem, fix)
            if isinstance(used.algorithm, MagnetSettings) and used.algorithm.pace and used.epochs == 1:
                epochs = self._field(policy, "epochs")
                problem = f"is measured by each epoch after the first, and {epochs} is 1"
                raise InputError(f"{field}.pace", problem, f"Set {epochs} to 2, or leave it out")
            if used.algorithm.needs_critic and used.critic is None:
                table = field.removesuffix("algorithm") + "critic"
                problem = f"is missing, but {field} is {used.algorithm.type}, which needs it"
                raise InputError(table, problem, f"Add [{table}]")
            if used.critic is not None and self.skip_zero_advantages:
                problem = f"is not for {critic}, which gives advantages of its own"
                raise InputError("learning.skip_zero_advantages", problem, "Leave one of the two out")

    def _field(self, policy: str, name: str) -> str:
        """Return the field that sets ``name`` for a policy: its own, or the run's."""
        own = self.policies.get(policy)
        is_own = own is not None and getattr(own, name) is not None
        return f"learning.policies.{policy}.{name}" if is_own else f"learning.{name}"
