"""Which numbers of an episode are possible: finite rewards, one for every role that acted, and finite
log-probabilities, one for every token that was drawn."""

from collections.abc import Sequence
from math import isfinite
from numbers import Real

from selfplay.core.errors import EpisodeError, shown
from selfplay.core.types import Step

LARGEST_REWARD = 1e30
"""Sums and squares of rewards up to this size are finite."""


def check_rewards(rewards: dict[str, float], steps: list[Step]) -> None:
    """Check that every role that acted has a reward, which is a finite number.

    Raises:
        EpisodeError: one has none.
    """
    for step in steps:
        if step.role_id not in rewards:
            raise EpisodeError(f"role {step.role_id} acted but no reward function scored it")
    for role_id, reward in rewards.items():
        finite_reward(reward, f"the weighted sum for role {role_id}")


def finite_reward(value: object, source: str) -> float:
    """Return the reward ``value``, which ``source`` gave, as a float; ``True`` becomes 1.

    Raises:
        EpisodeError: ``value`` is not a finite number (game libraries return strings and NaN), or is so large
            that sums and squares of rewards are not.
    """
    return _finite(value, f"{source} gave", "which is not")


def finite_number(value: object, name: str) -> float:
    """Return the field ``name`` as a float.

    Raises:
        EpisodeError: as for :func:`finite_reward`.
    """
    return _finite(value, f"{name} is", "not")


def _finite(value: object, before: str, after: str) -> float:
    if not is_bounded(value) or not is_bounded(number := float(value)):  # type: ignore[arg-type]
        raise EpisodeError(f"{before} {shown(value)}, {after} a finite number up to 1e30")
    return number


def is_bounded(value: object) -> bool:
    """Return whether ``value`` is a real number of at most ``LARGEST_REWARD`` in either direction."""
    is_number = type(value) is float or isinstance(value, Real)  # the second is ten times slower
    return is_number and -LARGEST_REWARD <= value <= LARGEST_REWARD  # type: ignore[operator]


def check_logprobs(drawn: Sequence[int], logprobs: Sequence[float], source: str) -> None:
    """Check that each of the ids that ``source`` has drawn has one finite log-probability.

    Raises:
        EpisodeError: one has none.
    """
    if len(drawn) != len(logprobs):
        problem = f"has {len(drawn)} drawn tokens but {len(logprobs)} log-probabilities"
        raise EpisodeError(f"{source} {problem}; the client that answered is at fault")
    if not isfinite(sum(logprobs)):
        raise EpisodeError(f"{source} has a log-probability that is not a finite number")
