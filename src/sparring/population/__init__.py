"""The model pool: its members, their ratings, the choice of opponents."""

from sparring.core.play import SampleMode
from sparring.population.curriculum import (
    BaseEnvSampler,
    UniformRandomEnvSampler,
    WeightedEnvSampler,
)
from sparring.population.exploration import ExplorationTracker
from sparring.population.model_pool import ModelPool
from sparring.population.opponent_choice import SamplingRule
from sparring.population.payoff import Payoff
from sparring.population.payoffs import PayoffMatrix, PayoffTable
from sparring.population.pool_members import ENVIRONMENT_UID, POLICY_UID
from sparring.population.ratings import Rating, TrueSkillRatings, ranks_of
from sparring.population.results import MatchRecord, MatchTable

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
