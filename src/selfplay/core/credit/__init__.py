"""Credit assignment: turns rewards into the advantage of every step."""

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey, apply_credit, assigned, state_of
from selfplay.core.credit.beside_critics import CreditBesideCritics
from selfplay.core.credit.groups import Grouping, equal_group_share
from selfplay.core.credit.grpo import GRPOCredit
from selfplay.core.credit.rae import RAECredit
from selfplay.core.credit.reinforce_pp import ReinforcePPBaselineCredit, ReinforcePPCredit
from selfplay.core.credit.rloo import RLOOCredit
from selfplay.core.credit.spo import SPOCredit
from selfplay.core.credit.without_baseline import ConstantCredit, EpisodicRewardCredit

__all__ = [
    "ConstantCredit",
    "CreditAssigner",
    "CreditBesideCritics",
    "EpisodicRewardCredit",
    "GRPOCredit",
    "Grouping",
    "RAECredit",
    "RLOOCredit",
    "ReinforcePPBaselineCredit",
    "ReinforcePPCredit",
    "RolloutStepKey",
    "SPOCredit",
    "apply_credit",
    "assigned",
    "equal_group_share",
    "state_of",
]
