"""The critic of a policy. What its fields do is in ``learning.critic`` and ``learning.gae``."""

from pydantic import Field

from selfplay.config.base import Settings


class CriticSettings(Settings):
    """A value head beside each policy's adapter. Advantages are what it did not expect, in place of those of
    `credit` and `rewards.sampling`. Rewards are divided by the root mean square of the returns so far, so
    nothing depends on whether a game pays 1 or 13."""

    gamma: float = Field(default=1.0, ge=1e-9, le=1)
    """Discount by which later turns of a role count less. Games end, so they need none."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """How far an advantage looks: with 0 it trusts the value of the role's next turn, with 1 only the rewards
    that were reached."""
    value_learning_rate: float = Field(default=0.1, ge=1e-12, le=10)
    """Constant learning rate of the head: about how far an optimizer step can move a value, in units of that
    root mean square."""
    value_weight: float = Field(default=0.5, ge=0, le=1e6)
    """Weight of the value loss in the gradient of the adapter, whose hidden states the head reads. With 0,
    only the head learns from that loss."""
    value_clip: float | None = Field(default=None, ge=1e-9, le=1e6)
    """How far the loss lets a value move within an update, in the same units; if not given, any distance."""
    normalize_advantages: bool = False
    """Centre the advantages of the batch, and divide them by their standard deviation."""
