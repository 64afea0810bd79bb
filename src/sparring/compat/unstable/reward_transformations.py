"""Reward transforms of ``collection.transforms`` under the module name that UnstableBaselines uses.

There, a sampling transform changes the rewards of a batch. Here a reward stays what an episode paid, and a
sampling transform sets advantages. One that is derived from this module's base sees advantages as rewards.
"""

import sparring.collection as replay
from sparring.collection import (
    ComposeFinalRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    SamePromptBaseline,
    StepRewardTransform,
    WinDrawLossFormatter,
)
from sparring.core import Step

__all__ = [
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "FinalRewardTransform",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "PenaltyForInvalidMove",
    "RewardForFormat",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageFormatter",
    "SamePromptBaseline",
    "SamplingRewardTransform",
    "StepRewardTransform",
    "WinDrawLossFormatter",
]


class SamplingRewardTransform(replay.SamplingRewardTransform):
    """A sampling transform as UnstableBaselines has them: it changes ``step.reward``."""


class ComposeSamplingRewardTransforms(replay.ComposeSamplingRewardTransforms):
    """Applies transforms one after the other, also those that change rewards."""

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps after every transform, with their new advantages."""
        for transform in self.transforms:
            of_rewards = isinstance(transform, SamplingRewardTransform)
            steps = _with_rewards(transform, steps) if of_rewards else transform(steps)
        return steps


def _with_rewards(transform: replay.SamplingRewardTransform, steps: list[Step]) -> list[Step]:
    given = [(step, step.reward) for step in steps]
    for step in steps:
        step.reward = step.advantage
    left = transform(steps)
    for step, reward in given:
        step.advantage, step.reward = step.reward, reward
    return left
