"""Reward transforms under the module name that UnstableBaselines uses; ``replay`` defines them."""

from selfplay.replay import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    SamePromptBaseline,
    SamplingRewardTransform,
    StepRewardTransform,
    WinDrawLossFormatter,
)

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
