"""SamplingRule: what the choice of opponents depends on besides the sample mode."""

from dataclasses import dataclass

from selfplay.core.play import PfspForm


@dataclass(frozen=True)
class SamplingRule:
    """Settings of single sample modes.

    Attributes:
        pfsp: the form of the weights of mode ``pfsp``.
    """

    pfsp: PfspForm = "hard"
