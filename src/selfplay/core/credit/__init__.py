"""Credit assignment: turns rewards into the advantage of every step."""

from selfplay.core.credit.base import (
    ConstantCredit,
    CreditAssigner,
    EpisodicRewardCredit,
    RolloutStepKey,
    apply_credit,
    assign,
    assigned,
    state_of,
)
from selfplay.core.credit.relative import (
    Grouping,
    GRPOCredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
    equal_group_share,
)
from selfplay.core.credit.tracked import RAECredit, SPOCredit

__all__ = [
    "ConstantCredit",
    "CreditAssigner",
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
    "assign",
    "assigned",
    "equal_group_share",
    "state_of",
]
