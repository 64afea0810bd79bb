"""Credit assignment: from rewards to the advantage of every step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from selfplay.core.episode import GenerateResult

RolloutStepKey = tuple[str, int]


class CreditAssigner(ABC):
    """Computes an advantage for every step of every rollout."""

    @abstractmethod
    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return advantages keyed by (rollout id, step index)."""


def apply_credit(results: list[GenerateResult], weights: dict[RolloutStepKey, float]) -> None:
    """Write ``weights`` into ``step.advantage``, in place. Steps without a weight keep theirs."""
    for result in results:
        for rollout in result.all_rollouts():
            for index, step in enumerate(rollout.steps):
                step.advantage = weights.get((rollout.id, index), step.advantage)


@dataclass
class ConstantCredit(CreditAssigner):
    """Every step gets the same advantage."""

    value: float = 1.0

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return ``value`` for every step."""
        return {
            (rollout.id, index): self.value
            for result in results
            for rollout in result.all_rollouts()
            for index in range(len(rollout.steps))
        }


class EpisodicRewardCredit(CreditAssigner):
    """Each step gets its role's reward (plain REINFORCE)."""

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's reward."""
        return {
            (rollout.id, index): step.reward
            for result in results
            for rollout in result.all_rollouts()
            for index, step in enumerate(rollout.steps)
        }
