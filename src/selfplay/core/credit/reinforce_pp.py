"""REINFORCE++: rewards whitened over the whole batch, and the same after a group's mean is subtracted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey
from selfplay.core.credit.groups import Grouping, centred, groups_of, weights_of
from selfplay.core.types import GenerateResult

EPSILON = 1e-8
"""Bounds a division by a very small deviation."""


class ReinforcePPCredit(CreditAssigner):
    """REINFORCE++: A_i = (R_i - mean) / (std + 1e-8) over the whole batch (Hu et al. 2025, arXiv 2501.03262).

    Mean and population standard deviation are those of all rewards of the batch, over all levels, types and
    roles. Equal rewards give exactly 0.

    The paper whitens over tokens, so that a longer answer counts more often. Here each role of each rollout
    counts once, whatever the number of its steps and tokens. The paper also subtracts, before it whitens, the
    KL divergence from each token to the end of its answer, which is missing here.
    """

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, which is the same for all steps of a role in a rollout."""
        entries = [entry for group in groups_of(results, "seat") for entry in group]
        return weights_of(entries, _whitened([entry.reward for entry in entries]))


@dataclass
class ReinforcePPBaselineCredit(CreditAssigner):
    """REINFORCE++ with baseline: R_i less its group's mean, then whitened over the whole batch.

    B_i = R_i - mean(R_1, ..., R_N) of the group; A_i = (B_i - mean) / (std + 1e-8) over the batch (Hu et al.
    2025, arXiv 2501.03262). A group of one has B = 0. Everything else is as in :class:`ReinforcePPCredit`;
    with the grouping ``prompt``, each step counts once in the batch.

    Args:
        group: what a group is, see :data:`~selfplay.core.credit.groups.Grouping`.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        groups = groups_of(results, self.group)
        differences = [value for group in groups for value in centred([entry.reward for entry in group])]
        entries = [entry for group in groups for entry in group]
        return weights_of(entries, _whitened(differences))


def _whitened(values: Sequence[float]) -> list[float]:
    """Return the values less their mean, divided by their standard deviation; exactly 0 if all are equal."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = fsum(values) / len(values)
    differences = [value - mean for value in values]
    std = sqrt(fsum(difference * difference for difference in differences) / len(differences))
    return [difference / (std + EPSILON) for difference in differences]
