"""What a question earns its proposer by the share of right answers to it, its pass rate p in [0, 1]."""

from sparring.config.programs import ProposerReward

LOWEST_NEAR_TARGET = -0.5
WRONG, UNREAD = -0.5, -1.0
"""Penalties of Absolute Zero (arXiv 2505.03335): for what keeps the requested form but is wrong or cannot be
used, and for what does not keep it."""


def question_reward(kind: ProposerReward, pass_rate: float, target: float = 0.5) -> float:
    """Return the reward of a valid question.

    ``near_target``: 1 - 2 |p - target|, but at least -0.5. With the target 1/2 this is the uncertainty reward
    of R-Zero (arXiv 2508.05004), 1 - 2 |p - 1/2|; its code has half of that, min(p, 1 - p).
    ``hard``: 1 - p, the proposer's reward of arXiv 2605.22217.
    ``mixed``: 1 if 0 < p < 1, else 0, as in SQLM (arXiv 2508.03682). By majority labels, p is above 0 as soon
    as one answer can be read, so that answers which all differ earn 1; its code gives these 0.
    ``learnability``: 1 - p, or 0 if p is 0 or 1, as in Absolute Zero (Zhao et al. 2025, arXiv 2505.03335),
    whose code pays -0.5 there.
    """
    match kind:
        case "near_target":
            return max(LOWEST_NEAR_TARGET, 1.0 - 2.0 * abs(pass_rate - target))
        case "hard":
            return 1.0 - pass_rate
        case "learnability":
            return 1.0 - pass_rate if 0.0 < pass_rate < 1.0 else 0.0
        case "mixed":
            return float(0.0 < pass_rate < 1.0)


def lowest_reward(kind: ProposerReward) -> float:
    """Return the least that a valid question can earn, which is what a repetition earns."""
    return LOWEST_NEAR_TARGET if kind == "near_target" else 0.0


def failure_reward(is_read: bool) -> float:
    """Return what a wrong answer earns, or a question that cannot be asked: more if it ``is_read``, since it
    has the requested form."""
    return WRONG if is_read else UNREAD
