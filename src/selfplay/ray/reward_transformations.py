"""Reward transforms, where seed 000 has them. ``replay`` is their home."""

from selfplay.replay.transforms_final import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)
from selfplay.replay.transforms_sampling import (
    ComposeSamplingRewardTransforms,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    SamePromptBaseline,
    SamplingRewardTransform,
)
from selfplay.replay.transforms_step import (
    ComposeStepRewardTransforms,
    PenaltyForInvalidMove,
    RewardForFormat,
    StepRewardTransform,
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
