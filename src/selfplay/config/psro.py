"""Settings of policy-space response oracles: ``selfplay psro``."""

from typing import Literal

from pydantic import Field

from selfplay.config.base import Settings
from selfplay.core.play import MetaStrategy


class PsroSettings(Settings):
    """Policy-space response oracles: `selfplay psro`. Other commands do not use it."""

    iterations: int = Field(default=8, ge=1, le=100_000)
    """Number of best responses."""
    solver: MetaStrategy = "nash"
    """The mixture that a best response is trained against: `nash` (the equilibrium of maximum entropy, the
    double oracle algorithm), `alpharank`, `prd` (projected replicator dynamics), or `uniform` (fictitious
    play)."""
    payoff_games: int = Field(default=1000, ge=4, le=1_000_000)
    """Games of each pair of members, half of them in either order of seats."""
    patience: int = Field(default=3, ge=1, le=10_000_000)
    """A best response is complete after so many evaluations in a row against the mixture without a better
    one, by the rule of `evaluation.patience`, and at the latest after `learning.steps` updates."""
    start: Literal["last", "first"] = "last"
    """What a best response starts from: the `last` member, or the `first` one, from which all began."""
