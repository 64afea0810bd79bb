"""SamplingRule: what the choice of opponents depends on besides the sample mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparring.core.play import PfspForm


@dataclass(frozen=True)
class SamplingRule:
    """Settings of the sample modes.

    Attributes:
        mirror_share: the probability of a mirror game in every mode but ``mirror``.
        pfsp: the form of the weights of mode ``pfsp``.
        payoff_games: games between every two members in mode ``meta-nash``.
        weights: how often each fixed model is drawn in mode ``fixed``, by name; empty for all alike.
    """

    mirror_share: float = 0.0
    pfsp: PfspForm = "hard"
    payoff_games: int = 64
    weights: Mapping[str, float] = field(default_factory=dict)
