"""Buffers, reward transforms and the rollout log."""

from selfplay.core.records import records_from_steps
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.buffers import BaseBuffer, EpisodeBuffer, StepBuffer
from selfplay.replay.rollout_log import RolloutLog
from selfplay.replay.transforms import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    DivideByGameRange,
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
    "BaseBuffer",
    "BatchLog",
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "DivideByGameRange",
    "EpisodeBuffer",
    "FinalRewardTransform",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "PenaltyForInvalidMove",
    "RewardForFormat",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageFormatter",
    "RolloutLog",
    "SamePromptBaseline",
    "SamplingRewardTransform",
    "StepBuffer",
    "StepRewardTransform",
    "WinDrawLossFormatter",
    "records_from_steps",
]
