"""What every credit assigner is, how its advantages reach the steps, and the two that subtract nothing."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sparring.core.errors import EpisodeError, shown
from sparring.core.own_code import method_of, returned
from sparring.core.played import finite_reward
from sparring.core.types import GenerateResult, Rollout

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


def assigned(credit: CreditAssigner, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
    """Return the advantages that ``credit`` computes, checked.

    Raises:
        EpisodeError: they are not one finite number for each trained step; the line names ``compute``.
    """
    source = method_of(credit, "compute")
    weights = returned(credit.compute(results), dict, source)
    keys = {
        (rollout.id, index): step.policy
        for rollout in trained_rollouts(results)
        for index, step in enumerate(rollout.steps)
    }
    for key in weights:
        if key not in keys:
            raise EpisodeError(f"{source} has the key {shown(key)}, not (rollout id, step index) of a step")
    missing = next((key for key, policy in keys.items() if policy and key not in weights), None)
    if missing is not None:
        raise EpisodeError(f"{source} gave no advantage for step {missing[1]} of the rollout {missing[0]}")
    return {key: finite_reward(weight, f"{source} for a step") for key, weight in weights.items()}


def assign(
    credit: CreditAssigner, results: list[GenerateResult], critics: frozenset[str] = frozenset()
) -> None:
    """Write the advantage of every trained step: what ``credit`` computes, or its reward.

    The steps of policies in ``critics`` have their reward, of which the learner makes advantages with a
    critic. ``credit`` does not see them as trained, so that they are in no mean and no baseline.

    Raises:
        EpisodeError: ``credit`` does not give one finite number for each of the other steps.
    """
    trained = {
        (rollout.id, index): step
        for rollout in trained_rollouts(results)
        for index, step in enumerate(rollout.steps)
        if step.policy
    }
    judged = {key: step.reward for key, step in trained.items() if step.policy in critics}
    if not judged:
        weights = assigned(credit, results)
    elif len(judged) < len(trained):
        weights = assigned(credit, [_without(critics, result) for result in results]) | judged
    else:
        weights = judged  # an assigner of one's own may not expect that there is nothing
    apply_credit(results, weights)


def _without(critics: frozenset[str], result: GenerateResult) -> GenerateResult:
    """Return a copy in which the policies with a critic are not trained."""
    rollout = result.rollout
    steps = [replace(step, policy="") if step.policy in critics else step for step in rollout.steps]
    children = [_without(critics, child) for child in result.children]
    return GenerateResult(replace(rollout, steps=steps), children, result.is_trainable)


def apply_credit(results: list[GenerateResult], weights: dict[RolloutStepKey, float]) -> None:
    """Write ``weights`` into ``step.advantage``, in place. Steps without a weight keep their advantage.

    ``rollout.advantages`` becomes the mean over the steps of each role.
    """
    for rollout in trained_rollouts(results):
        by_role: dict[str, list[float]] = {}
        for index, step in enumerate(rollout.steps):
            step.advantage = weights.get((rollout.id, index), step.advantage)
            by_role.setdefault(step.role_id, []).append(step.advantage)
        rollout.advantages = {role: sum(values) / len(values) for role, values in by_role.items()}


def trained_rollouts(results: list[GenerateResult]) -> Iterable[Rollout]:
    """Yield the trainable rollouts of all levels, parents first."""
    return (rollout for result in results for rollout in result.trainable_rollouts())


def trained_roles(rollout: Rollout) -> dict[str, str]:
    """Return the roles that a policy is trained on, each with the policy, in order of their first step."""
    return {step.role_id: step.policy for step in rollout.steps if step.policy}


def steps_of_role(rollout: Rollout, role_id: str) -> list[RolloutStepKey]:
    """Return the keys of the role's steps."""
    return [(rollout.id, index) for index, step in enumerate(rollout.steps) if step.role_id == role_id]


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
