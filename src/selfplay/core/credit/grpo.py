"""GRPO: rewards relative to their group's mean."""

from dataclasses import dataclass
from math import sqrt

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey
from selfplay.core.credit.groups import Grouping, centred, groups_of, weights_of
from selfplay.core.types import GenerateResult


@dataclass
class GRPOCredit(CreditAssigner):
    """Rewards relative to their group's mean: A_i = R_i - mean(R_1, ..., R_N) (Shao et al. 2024).

    A group of one has advantage 0. To compare only answers to the same prompt, use the grouping ``prompt``,
    or name the prompt in ``meta["group"]``.

    Args:
        normalize: divide by the group's standard deviation (over N, not N - 1) where it exceeds 1e-8.
        positive_only: set negative advantages to 0.
        group: what a group is, see :data:`~selfplay.core.credit.groups.Grouping`.
    """

    normalize: bool = False
    positive_only: bool = False
    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        weights: dict[RolloutStepKey, float] = {}
        for entries in groups_of(results, self.group):
            weights |= weights_of(entries, self._advantages([entry.reward for entry in entries]))
        return weights

    def _advantages(self, rewards: list[float]) -> list[float]:
        advantages = centred(rewards)
        if self.normalize:
            deviation = sqrt(sum(value * value for value in advantages) / len(advantages))
            if deviation > 1e-8:
                advantages = [value / deviation for value in advantages]
        return [max(value, 0.0) for value in advantages] if self.positive_only else advantages
