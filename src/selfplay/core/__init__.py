"""The vocabulary every other room speaks. Standard library only."""

from selfplay.core.arena import Arena
from selfplay.core.client import InferenceClient, MockInferenceClient, ModelResponse
from selfplay.core.credit import ConstantCredit, CreditAssigner, EpisodicRewardCredit, apply_credit
from selfplay.core.episode import Episode, EpisodeState, GenerateResult
from selfplay.core.errors import EpisodeError, InputError, SelfplayError
from selfplay.core.play import AgentSpec, Opponent, PlaySpec, TaskMeta, trajectories_of
from selfplay.core.rubric import RewardFn, Rubric
from selfplay.core.seeds import derive_seed
from selfplay.core.types import Message, Messages, Role, Rollout, Step, TrainingRecord, Trajectory

__all__ = [
    "AgentSpec",
    "Arena",
    "ConstantCredit",
    "CreditAssigner",
    "Episode",
    "EpisodeError",
    "EpisodeState",
    "EpisodicRewardCredit",
    "GenerateResult",
    "InferenceClient",
    "InputError",
    "Message",
    "Messages",
    "MockInferenceClient",
    "ModelResponse",
    "Opponent",
    "PlaySpec",
    "RewardFn",
    "Role",
    "Rollout",
    "Rubric",
    "SelfplayError",
    "Step",
    "TaskMeta",
    "TrainingRecord",
    "Trajectory",
    "apply_credit",
    "derive_seed",
    "trajectories_of",
]
