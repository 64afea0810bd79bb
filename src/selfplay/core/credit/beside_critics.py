"""Credit for the policies that have no critic, where others have one."""

from dataclasses import replace
from typing import Any

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey, assigned, state_of, trained_rollouts
from selfplay.core.types import GenerateResult


class CreditBesideCritics(CreditAssigner):
    """Gives the steps of policies with a critic their rewards, and all others what ``credit`` assigns.

    The learner makes advantages of the rewards with the critic. ``credit`` does not see these steps, so that
    they are in no mean and no baseline.

    Args:
        credit: assigns the advantages of the other policies.
        critics: the policies that have a critic.
    """

    def __init__(self, credit: CreditAssigner, critics: frozenset[str]) -> None:
        self.credit = credit
        self.critics = critics

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, or its reward if its policy has a critic."""
        trained = [
            ((rollout.id, index), step)
            for rollout in trained_rollouts(results)
            for index, step in enumerate(rollout.steps)
            if step.policy
        ]
        judged = {key: step.reward for key, step in trained if step.policy in self.critics}
        if len(judged) == len(trained):  # an assigner of one's own may not expect that there is nothing
            return judged
        return assigned(self.credit, [self._others(result) for result in results]) | judged

    def _others(self, result: GenerateResult) -> GenerateResult:
        """Return a copy in which the policies with a critic are not trained."""
        steps = [
            replace(step, policy="") if step.policy in self.critics else step for step in result.rollout.steps
        ]
        children = [self._others(child) for child in result.children]
        return GenerateResult(replace(result.rollout, steps=steps), children, result.is_trainable)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``credit``."""
        return state_of(self.credit)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of ``credit``."""
        self.credit.load_state_dict(state)
