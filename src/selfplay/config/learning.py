"""The learner."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from selfplay.config.algorithms import A2cSettings, Algorithm, MagnetSettings, ReinforceSettings
from selfplay.config.base import Settings
from selfplay.config.critic import CriticSettings
from selfplay.core import InputError


class LearningSettings(Settings):
    """The learner."""

    steps: int = Field(default=100, ge=1)
    """Number of updates in the whole run."""
    algorithm: Algorithm = ReinforceSettings()
    """The policy-gradient algorithm. A table without `type` is `python` if it has a `path`, and `reinforce`
    otherwise."""
    critic: CriticSettings | None = None
    """A critic, for any algorithm but `magnet`. `[learning.critic]` without fields has the default values."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW after warm-up."""
    learning_rate_end: float = Field(default=5e-6, ge=0)
    """Learning rate at the last update; it follows a cosine in between."""
    policy_rates: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Factors by which both rates are multiplied for some policies, by the policy's name."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """AdamW's first beta. A plain policy gradient of an earlier update belongs to earlier opponents, so it is
    0; `magnet` answers the average of many updates, and gains from 0.8."""
    warmup_steps: int = Field(default=4, ge=0)
    """Number of updates over which the learning rate rises."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum global L2 norm of the gradient."""
    epochs: int = Field(default=1, ge=1)
    """Number of times that an update goes through its records."""
    minibatches: int = Field(default=1, ge=1)
    """Number of parts into which the records of an update are divided at random, with an optimizer step for
    each in every epoch. With more than one step, an algorithm with a clip is better than `reinforce`."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the adapter's weights, which is the adapter that is evaluated and kept; 0
    for no average."""
    max_generation_len: int | None = Field(default=None, ge=1)
    """Constant normaliser of the loss, in tokens; `inference.max_tokens` if not given."""
    max_train_len: int | None = Field(default=None, ge=2)
    """Maximum number of tokens of prompt and answer that are trained on; if not given, there is no limit."""
    max_batch_tokens: int = Field(default=6144, ge=16)
    """Maximum number of tokens in one forward pass; larger trees go through the model in sections."""
    max_mismatch: float = Field(default=0.2, gt=0)
    """Mean difference between the log-probabilities of engine and learner, in nats per token, above which the
    run stops; the limit for tokens of older versions is 1 nat higher."""

    @model_validator(mode="after")
    def _magnet_has_an_average(self) -> "LearningSettings":
        if isinstance(self.algorithm, MagnetSettings) and not self.average_decay:
            raise InputError(
                "learning.average_decay",
                "is 0, but the running average is the magnet of learning.algorithm",
                "Set it, for example to 0.8",
            )
        return self

    @model_validator(mode="after")
    def _a_critic_where_it_is_used(self) -> "LearningSettings":
        if isinstance(self.algorithm, A2cSettings) and self.critic is None:
            raise InputError(
                "learning.critic", "is missing, but a2c learns from its advantages", "Add [learning.critic]"
            )
        if isinstance(self.algorithm, MagnetSettings) and self.critic is not None:
            raise InputError(
                "learning.critic",
                "is of no use to magnet, which has a value for every legal answer",
                "Leave it out, or choose another learning.algorithm",
            )
        return self

    @field_validator("algorithm", mode="before")
    @classmethod
    def _with_type(cls, algorithm: Any) -> Any:
        if not isinstance(algorithm, dict):
            return algorithm
        return {"type": "python" if "path" in algorithm else "reinforce", **algorithm}
