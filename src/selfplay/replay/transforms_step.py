"""Step-reward transforms: they map a trajectory's reward to the reward of each of its steps."""

from abc import ABC, abstractmethod
from typing import Any

from selfplay.core import Trajectory
from selfplay.replay.transforms_base import ComposedTransforms, RewardTransform


class StepRewardTransform(RewardTransform, ABC):
    """Maps the reward of one step to a new reward."""

    @abstractmethod
    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the reward of ``trajectory.steps[step_index]``, given the reward before this transform."""


class ComposeStepRewardTransforms(ComposedTransforms[StepRewardTransform], StepRewardTransform):
    """Applies transforms one after the other; each receives the output of the previous one."""

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the step's reward after every transform."""
        for transform in self.transforms:
            base_reward = transform(trajectory, step_index, base_reward)
        return base_reward


class RewardForFormat(StepRewardTransform):
    """Adds ``reward`` to each step with a well-formatted answer, and ``penalty`` to every other step.

    A step without feedback about its format, as those of programs are, counts as one that is not well
    formatted.
    """

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        self.reward = reward
        self.penalty = penalty

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the reward plus the bonus or the penalty."""
        well_formed = _format_feedback(trajectory, step_index).get("correct_answer_format", False)
        return base_reward + (self.reward if well_formed else self.penalty)


class PenaltyForInvalidMove(StepRewardTransform):
    """Adds ``penalty`` to each step with an invalid move, and ``reward`` to every other step.

    A step without feedback about its move counts as valid, because games report only invalid moves.
    """

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        self.reward = reward
        self.penalty = penalty

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the reward plus the bonus or the penalty."""
        invalid = _format_feedback(trajectory, step_index).get("invalid_move", False)
        return base_reward + (self.penalty if invalid else self.reward)


def _format_feedback(trajectory: Trajectory, step_index: int) -> dict[str, Any]:
    feedback: dict[str, Any] = trajectory.steps[step_index].info.get("format_feedback", {})
    return feedback
