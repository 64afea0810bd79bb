"""The data gate of a proposer and its solvers."""

from collections.abc import Iterable

from pydantic import Field

from sparring.config.base import Rule, Settings, at_field


class GateSettings(Settings):
    """Which proposed questions enter training: the solver learns from them, and they are stored. Others are
    asked as well, and earn their proposer what they earn. By default all valid ones enter."""

    leak: float = Field(default=0.0, ge=0, le=1)
    """The probability with which an invalid question passes for a valid one: it is asked, rewarded and
    stored like any other. This is the strictness ε of arXiv 2605.22217: with 0 nothing invalid enters, with 1
    everything that can be asked. Only the domain `expressions` has invalid questions that can be asked."""
    min_pass_rate: float = Field(default=0.0, ge=0, le=1)
    """The least share of right answers, by `proposer_labels`."""
    max_pass_rate: float = Field(default=1.0, ge=0, le=1)
    """The largest share of right answers."""
    min_agreement: float = Field(default=0.0, ge=0, le=1)
    """The least share of the most common answer among all answers."""
    label_agrees: bool = False
    """Whether the most common answer must be the question's own, or the one that its proposer stated if
    `proposer_labels` is `stated`."""
    novelty: float | None = Field(default=None, ge=0, le=1)
    """The least distance (1 - BLEU) from every stored question, and from those of the same update that
    entered before; 0 excludes only repetitions. By default repetitions enter too."""

    def rules(self) -> Iterable[Rule]:
        """The band of pass rates is not empty."""
        return (self._band,)

    def _band(self) -> None:
        if self.min_pass_rate > self.max_pass_rate:
            problem = f"is {self.min_pass_rate:g}, which is above max_pass_rate, {self.max_pass_rate:g}"
            raise at_field(problem, "Make it smaller", "min_pass_rate")
