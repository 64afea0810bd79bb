"""Buffers, reward transforms and the rollout log."""

from selfplay.replay.batch_log import BatchLog
from selfplay.replay.buffers import BaseBuffer, EpisodeBuffer, StepBuffer
from selfplay.replay.records import records_from_steps
from selfplay.replay.rollout_log import RolloutLog
from selfplay.replay.transforms_final import (
    ComposeFinalRewardTransforms,
    DivideByGameRange,
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
