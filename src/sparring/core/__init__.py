"""The vocabulary that every other package uses. It imports only the standard library."""

import sys
from typing import Any

from sparring.core.arena import Arena
from sparring.core.artifacts import Artifact, ArtifactStore
from sparring.core.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode, SingleTurnEpisode
from sparring.core.client import InferenceClient, MockInferenceClient, ModelResponse
from sparring.core.credit.assigners import (
    ConstantCredit,
    CreditAssigner,
    EpisodicRewardCredit,
    GRPOCredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
    RolloutStepKey,
    apply_credit,
)
from sparring.core.credit.tracked import RAECredit, SPOCredit
from sparring.core.episode import Episode, EpisodeState, RewardFn, Rubric, Utterance
from sparring.core.errors import ContextError, EpisodeError, InputError, SparringError, TransientError
from sparring.core.messages import Message, Messages
from sparring.core.play import Opponent, PlaySpec, TaskMeta, Trajectory, trajectories_of
from sparring.core.sampling import Sampling
from sparring.core.seeds import derive_seed
from sparring.core.types import (
    AgentSpec,
    CallSettings,
    EpisodeRequest,
    GenerateResult,
    Role,
    Rollout,
    Step,
    TrainingBatch,
    TrainingRecord,
)
from sparring.core.verbose_logger import VerboseLogger

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
    "Sampling",
    "SingleTurnEpisode",
    "SparringError",
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
    return sys.modules["sparring"].OpenAIClient
