"""The model pool: its members, their ratings, the choice of opponents."""

from selfplay.core.play import SampleMode
from selfplay.population.environment_samplers import (
    BaseEnvSampler,
    UniformRandomEnvSampler,
    WeightedEnvSampler,
)
from selfplay.population.exploration import ExplorationTracker
from selfplay.population.match_table import MatchRecord, MatchTable
from selfplay.population.model_pool import ModelPool
from selfplay.population.payoff import Payoff
from selfplay.population.payoffs import PayoffMatrix, PayoffTable
from selfplay.population.pool_members import ENVIRONMENT_UID, POLICY_UID
from selfplay.population.ratings import Rating, TrueSkillRatings, ranks_of
from selfplay.population.sampling_rule import SamplingRule

__all__ = [
    "ENVIRONMENT_UID",
    "POLICY_UID",
    "BaseEnvSampler",
    "ExplorationTracker",
    "MatchRecord",
    "MatchTable",
    "ModelPool",
    "Payoff",
    "PayoffMatrix",
    "PayoffTable",
    "Rating",
    "SampleMode",
    "SamplingRule",
    "TrueSkillRatings",
    "UniformRandomEnvSampler",
    "WeightedEnvSampler",
    "ranks_of",
]
