"""Rewards for what can be learned from a question, with penalties for the form of answers.

Of Absolute Zero (Zhao et al. 2025, arXiv 2505.03335): a proposer earns 1 less the share of right answers, and
nothing if none or all are right; a solver earns 1 for a right answer. Who keeps the form but is wrong, or
says what cannot be used, earns -0.5; who does not keep the form earns -1. The authors' code differs in one
place: it pays -0.5 for a question that none or all solve.
"""

from sparring.core import Arena, Rollout, Rubric

WRONG_REWARD = -0.5
"""What keeps the form, and is wrong or cannot be used."""
UNREAD_REWARD = -1.0
"""What does not keep the form."""


def learnability(pass_rate: float) -> float:
    """Return 1 - pass rate; 0 if that is 0 or 1."""
    return 1.0 - pass_rate if 0.0 < pass_rate < 1.0 else 0.0


def learnability_reward(rollout: Rollout) -> float:
    """Return what a proposal earns."""
    if not rollout.extras["well_formed"]:
        return UNREAD_REWARD
    return learnability(rollout.extras["pass_rate"]) if rollout.extras["valid"] else WRONG_REWARD


def learnability_rubric(proposer_role: str, metrics: Rubric) -> Rubric:
    """Return a rubric with this reward, and all metrics of another rubric as they are."""

    def learnable(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {proposer_role: learnability_reward(rollout)}

    return Rubric([learnable, *metrics.funcs[1:]], [1.0, *metrics.weights[1:]])


def answer_reward(is_read: bool, is_right: bool) -> float:
    """Return what an answer earns."""
    if not is_read:
        return UNREAD_REWARD
    return 1.0 if is_right else WRONG_REWARD
