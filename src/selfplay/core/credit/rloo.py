"""RLOO: rewards relative to the mean of the other rewards of their group."""

from dataclasses import dataclass
from math import fsum

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey
from selfplay.core.credit.groups import Grouping, groups_of, weights_of
from selfplay.core.types import GenerateResult


@dataclass
class RLOOCredit(CreditAssigner):
    """REINFORCE leave-one-out: A_i = R_i - mean(R_j for j != i) (Ahmadian et al. 2024, arXiv 2402.14740).

    The baseline does not depend on the reward that it is subtracted from, so the gradient is unbiased; the
    advantage is N / (N - 1) times that of GRPO without normalisation. A group of one has advantage 0. With
    the grouping ``prompt``, only the step itself is left out, not the other steps of its episode.

    Args:
        group: what a group is, see :data:`~selfplay.core.credit.groups.Grouping`.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        weights: dict[RolloutStepKey, float] = {}
        for entries in groups_of(results, self.group):
            weights |= weights_of(entries, _less_the_others([entry.reward for entry in entries]))
        return weights


def _less_the_others(rewards: list[float]) -> list[float]:
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # also a single reward; exactly 0, without rounding
    total, others = fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]
