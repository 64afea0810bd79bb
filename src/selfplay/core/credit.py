"""Credit assignment: turns rewards into the advantage of every step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from selfplay.core.types import GenerateResult, Rollout

RolloutStepKey = tuple[str, int]


class CreditAssigner(ABC):
    """Computes an advantage for every step of every trainable rollout."""

    @abstractmethod
    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return advantages keyed by (rollout id, step index)."""

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able state that a checkpoint must keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most assigners have no state
        """Continue from :meth:`state_dict`."""


def apply_credit(results: list[GenerateResult], weights: dict[RolloutStepKey, float]) -> None:
    """Write ``weights`` into ``step.advantage``, in place. Steps without a weight keep their advantage.

    ``rollout.advantages`` becomes the mean over the steps of each role.
    """
    for rollout in _rollouts(results):
        by_role: dict[str, list[float]] = {}
        for index, step in enumerate(rollout.steps):
            step.advantage = weights.get((rollout.id, index), step.advantage)
            by_role.setdefault(step.role_id, []).append(step.advantage)
        rollout.advantages = {role: sum(values) / len(values) for role, values in by_role.items()}


@dataclass
class ConstantCredit(CreditAssigner):
    """Gives every step the same advantage."""

    value: float = 1.0

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return ``value`` for every step."""
        return {
            (rollout.id, index): self.value
            for rollout in _rollouts(results)
            for index in range(len(rollout.steps))
        }


class EpisodicRewardCredit(CreditAssigner):
    """Gives each step its role's reward as its advantage (plain REINFORCE)."""

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's reward."""
        return {
            (rollout.id, index): step.reward
            for rollout in _rollouts(results)
            for index, step in enumerate(rollout.steps)
        }


@dataclass
class GRPOCredit(CreditAssigner):
    """Rewards relative to their group's mean: A_i = R_i - mean(R_1, ..., R_N) (Shao et al. 2024).

    Groups are formed within one level: the top level, or the children of one parent. A group holds the
    rewards of one role in episodes of one type with the same ``meta["group"]``, if it is set. To compare only
    answers to the same prompt, name the prompt there. A group of one has advantage 0.

    Args:
        normalize: divide by the group's standard deviation (over N, not N - 1) where it exceeds 1e-8.
        positive_only: set negative advantages to 0.
    """

    normalize: bool = False
    positive_only: bool = False

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, which is the same for all steps of a role in a rollout."""
        weights: dict[RolloutStepKey, float] = {}
        for level in _levels(results):
            for role_id, rollouts in _groups(level):
                rewards = [rollout.rewards[role_id] for rollout in rollouts]
                for rollout, advantage in zip(rollouts, self._advantages(rewards), strict=True):
                    weights |= _for_role(rollout, role_id, advantage)
        return weights

    def _advantages(self, rewards: list[float]) -> list[float]:
        if min(rewards) == max(rewards):
            return [0.0] * len(rewards)  # exactly 0; the mean of equal numbers can differ by rounding
        mean = sum(rewards) / len(rewards)
        centred = [reward - mean for reward in rewards]
        if self.normalize:
            deviation = sqrt(sum(value * value for value in centred) / len(centred))
            if deviation > 1e-8:
                centred = [value / deviation for value in centred]
        return [max(value, 0.0) for value in centred] if self.positive_only else centred


@dataclass
class RAECredit(CreditAssigner):
    """Role-conditioned baseline: A = R - b, with a moving average b for each episode type and role.

    Role-conditioned advantage estimation (SPIRAL, Liu et al. 2025). As in SPIRAL, ``decay`` applies per
    episode and the baselines begin at 0. SPIRAL's code updates b <- decay * b + (1 - decay) * R after each
    episode. Here all advantages of a batch use the baselines from before the batch, and its n episodes then
    update them together: b <- decay^n * b + (1 - decay^n) * mean of the batch. The result therefore does not
    depend on the order within a batch.
    """

    decay: float = 0.95
    baselines: dict[str, float] = field(default_factory=dict)

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, and update the baselines."""
        weights: dict[RolloutStepKey, float] = {}
        rewards: dict[str, list[float]] = {}
        for rollout in _rollouts(results):
            for role_id in _trained_roles(rollout):
                key = f"{rollout.episode_type}/{role_id}"
                reward = rollout.rewards[role_id]
                rewards.setdefault(key, []).append(reward)
                weights |= _for_role(rollout, role_id, reward - self.baselines.get(key, 0.0))
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


def equal_group_share(results: list[GenerateResult]) -> float | None:
    """Return the share of GRPO's groups in which all rewards are equal, so that they teach nothing.

    Returns:
        A share between 0 and 1, or ``None`` if no role acted.
    """
    groups = [
        {rollout.rewards[role_id] for rollout in rollouts}
        for level in _levels(results)
        for role_id, rollouts in _groups(level)
    ]
    return sum(len(rewards) == 1 for rewards in groups) / len(groups) if groups else None


def _rollouts(results: list[GenerateResult]) -> Iterable[Rollout]:
    return (rollout for result in results for rollout in result.trainable_rollouts())


def _levels(results: list[GenerateResult]) -> Iterable[list[Rollout]]:
    """Yield the lists of rollouts that are compared with each other: siblings, parents first."""
    trained = [result for result in results if result.is_trainable]
    yield [result.rollout for result in trained]
    for result in trained:
        if result.children:
            yield from _levels(result.children)


def _groups(level: list[Rollout]) -> Iterable[tuple[str, list[Rollout]]]:
    groups: dict[tuple[str, object, str], list[Rollout]] = {}
    for rollout in level:
        for role_id in _trained_roles(rollout):
            key = (rollout.episode_type, rollout.meta.get("group"), role_id)
            groups.setdefault(key, []).append(rollout)
    return ((role_id, rollouts) for (_, _, role_id), rollouts in groups.items())


def _trained_roles(rollout: Rollout) -> Iterable[str]:
    """Return the roles that a policy is trained on, in order of their first step."""
    return dict.fromkeys(step.role_id for step in rollout.steps if step.policy)


def _for_role(rollout: Rollout, role_id: str, advantage: float) -> dict[RolloutStepKey, float]:
    steps = enumerate(rollout.steps)
    return {(rollout.id, index): advantage for index, step in steps if step.role_id == role_id}
