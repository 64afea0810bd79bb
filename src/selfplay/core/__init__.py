"""The vocabulary that every other package uses. It imports only the standard library."""

import sys
from typing import Any

from selfplay.core.agents import AgentSpec, CallSettings
from selfplay.core.arena import Arena
from selfplay.core.artifacts import Artifact, ArtifactStore
from selfplay.core.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode, SingleTurnEpisode
from selfplay.core.client import InferenceClient, MockInferenceClient, ModelResponse
from selfplay.core.credit.base import (
    ConstantCredit,
    CreditAssigner,
    EpisodicRewardCredit,
    RolloutStepKey,
    apply_credit,
)
from selfplay.core.credit.relative import (
    GRPOCredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
)
from selfplay.core.credit.tracked import RAECredit, SPOCredit
from selfplay.core.episode import Episode, EpisodeState, Utterance
from selfplay.core.errors import ContextError, EpisodeError, InputError, SelfplayError, TransientError
from selfplay.core.messages import Message, Messages
from selfplay.core.play import Opponent, PlaySpec, TaskMeta, Trajectory, trajectories_of
from selfplay.core.rubric import RewardFn, Rubric
from selfplay.core.seeds import derive_seed
from selfplay.core.types import (
    EpisodeRequest,
    GenerateResult,
    Role,
    Rollout,
    Step,
    TrainingBatch,
    TrainingRecord,
)
from selfplay.core.verbose_logger import VerboseLogger

__all__ = [
    "AgentSpec",
    "AlternatingRolesEpisode",
    "Arena",
    "Artifact",
    "ArtifactStore",
    "CallSettings",
    "ChatEpisode",
    "ConstantCredit",
    "ContextError",
    "CreditAssigner",
    "Episode",
    "EpisodeError",
    "EpisodeRequest",
    "EpisodeState",
    "EpisodicRewardCredit",
    "GRPOCredit",
    "GenerateResult",
    "InferenceClient",
    "InputError",
    "Message",
    "Messages",
    "MockInferenceClient",
    "ModelResponse",
    "MultiTurnEpisode",
    "Opponent",
    "PlaySpec",
    "RAECredit",
    "RLOOCredit",
    "ReinforcePPBaselineCredit",
    "ReinforcePPCredit",
    "RewardFn",
    "Role",
    "Rollout",
    "RolloutStepKey",
    "Rubric",
    "SPOCredit",
    "SelfplayError",
    "SingleTurnEpisode",
    "Step",
    "TaskMeta",
    "TrainingBatch",
    "TrainingRecord",
    "Trajectory",
    "TransientError",
    "Utterance",
    "VerboseLogger",
    "apply_credit",
    "derive_seed",
    "trajectories_of",
]


def __getattr__(name: str) -> Any:
    """Return ``OpenAIClient`` from the package above, which imports it: this one imports no other package."""
    if name != "OpenAIClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return sys.modules["selfplay"].OpenAIClient
