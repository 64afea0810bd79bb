"""RAE: rewards relative to a moving average for each role and policy."""

from dataclasses import dataclass, field
from typing import Any

from selfplay.core.credit.base import (
    CreditAssigner,
    RolloutStepKey,
    steps_of_role,
    trained_roles,
    trained_rollouts,
)
from selfplay.core.types import GenerateResult


@dataclass
class RAECredit(CreditAssigner):
    """Role-conditioned baseline: A = R - b, with a moving average b for each episode type, role and policy.

    Role-conditioned advantage estimation (SPIRAL, Liu et al. 2025), which trains one policy. In a league
    several policies play one role, and one may win there what another loses, so each has its own b. As in
    SPIRAL, ``decay`` applies per episode and the baselines begin at 0. SPIRAL's code updates
    b <- decay * b + (1 - decay) * R after each episode. Here all advantages of a batch use the baselines from
    before the batch, and its n episodes then update them together:
    b <- decay^n * b + (1 - decay^n) * mean of the batch. The result therefore does not depend on the order
    within a batch. ``baselines`` has the keys TYPE/ROLE/POLICY.
    """

    decay: float = 0.95
    baselines: dict[str, float] = field(default_factory=dict)

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, and update the baselines."""
        weights: dict[RolloutStepKey, float] = {}
        rewards: dict[str, list[float]] = {}
        for rollout in trained_rollouts(results):
            for role_id, policy in trained_roles(rollout).items():
                key = f"{rollout.episode_type}/{role_id}/{policy}"
                reward = rollout.rewards[role_id]
                rewards.setdefault(key, []).append(reward)
                advantage = reward - self.baselines.get(key, 0.0)
                weights |= dict.fromkeys(steps_of_role(rollout, role_id), advantage)
        for key, values in rewards.items():
            mean, kept = sum(values) / len(values), self.decay ** len(values)
            self.baselines[key] = kept * self.baselines.get(key, 0.0) + (1 - kept) * mean
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines."""
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.baselines = dict(state["baselines"])
