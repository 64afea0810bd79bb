"""The games of a run: who plays next, what became of each, the buffer that they fill, logs and metrics."""

from sparring.collection.buffers import BaseBuffer, EpisodeBuffer, StepBuffer
from sparring.collection.rollout_log import BatchLog, RolloutLog
from sparring.collection.sinks import JsonlSink, Metrics, Sink, TensorBoardSink, WandbSink, read_metrics
from sparring.collection.tracker import Tracker, is_wall_clock
from sparring.collection.transforms import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    DivideByGameRange,
    FinalRewardTransform,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    NormalizeRewardsByRole,
    NormalizeRewardsByTurn,
    PenaltyForInvalidMove,
    RewardForFormat,
    RewardForReasoning,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    SamePromptBaseline,
    SamplingRewardTransform,
    StepRewardTransform,
    WinDrawLossFormatter,
)
from sparring.core.records import records_from_steps

__all__ = [
    "BaseBuffer",
    "BatchLog",
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "DivideByGameRange",
    "EpisodeBuffer",
    "FinalRewardTransform",
    "JsonlSink",
    "Metrics",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "NormalizeRewardsByRole",
    "NormalizeRewardsByTurn",
    "PenaltyForInvalidMove",
    "RewardForFormat",
    "RewardForReasoning",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageFormatter",
    "RolloutLog",
    "SamePromptBaseline",
    "SamplingRewardTransform",
    "Sink",
    "StepBuffer",
    "StepRewardTransform",
    "TensorBoardSink",
    "Tracker",
    "WandbSink",
    "WinDrawLossFormatter",
    "is_wall_clock",
    "read_metrics",
    "records_from_steps",
]
