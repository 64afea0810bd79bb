"""The credit assigners that subtract nothing from a reward."""

from dataclasses import dataclass

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey, trained_rollouts
from selfplay.core.types import GenerateResult


@dataclass
class ConstantCredit(CreditAssigner):
    """Gives every step the same advantage."""

    value: float = 1.0

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return ``value`` for every step."""
        return {
            (rollout.id, index): self.value
            for rollout in trained_rollouts(results)
            for index in range(len(rollout.steps))
        }


class EpisodicRewardCredit(CreditAssigner):
    """Gives each step its role's reward as its advantage (plain REINFORCE)."""

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's reward."""
        return {
            (rollout.id, index): step.reward
            for rollout in trained_rollouts(results)
            for index, step in enumerate(rollout.steps)
        }
