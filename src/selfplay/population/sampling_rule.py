"""SamplingRule: what the choice of opponents depends on besides the sample mode."""

from dataclasses import dataclass

from selfplay.core.play import PfspForm


@dataclass(frozen=True)
class SamplingRule:
    """Settings of the sample modes.

    Attributes:
        mirror_share: the probability of a mirror game in every mode but ``mirror``.
        pfsp: the form of the weights of mode ``pfsp``.
        payoff_games: games between every two members in mode ``meta-nash``.
    """

    mirror_share: float = 0.0
    pfsp: PfspForm = "hard"
    payoff_games: int = 64
