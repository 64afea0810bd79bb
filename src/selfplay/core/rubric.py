"""Rubric: composable reward functions over a finished rollout."""

import inspect
import math
from collections.abc import Awaitable, Callable
from numbers import Real

from selfplay.core.arena import Arena
from selfplay.core.errors import EpisodeError, SelfplayError, is_transient, reason_of
from selfplay.core.types import Rollout

RewardFn = Callable[[Rollout, Arena], dict[str, float] | Awaitable[dict[str, float]]]


class Rubric:
    """A weighted sum of reward functions, each of which returns rewards by role id."""

    def __init__(self, funcs: list[RewardFn], weights: list[float] | None = None) -> None:
        if weights is not None and len(weights) != len(funcs):
            raise ValueError(f"{len(funcs)} reward functions but {len(weights)} weights")
        self.funcs = funcs
        self.weights = weights or [1.0] * len(funcs)
        self.names = _distinct([getattr(func, "__name__", type(func).__name__) for func in funcs])

    async def score(self, rollout: Rollout, arena: Arena) -> None:
        """Set ``rollout.rewards``, ``rollout.metrics`` and every ``step.reward``, in place.

        The metric of a function and role is ``FUNCTION/ROLE``; if two functions have the same name, the
        second is called ``FUNCTION-2``.

        Raises:
            EpisodeError: a function raised, a reward is not a finite number or is for a role that the arena
                does not have, or a role that acted got no reward.
        """
        rewards: dict[str, float] = {}
        for func, weight, name in zip(self.funcs, self.weights, self.names, strict=True):
            try:
                scored = func(rollout, arena)
                values = await scored if inspect.isawaitable(scored) else scored
            except Exception as error:
                if isinstance(error, SelfplayError) or is_transient(error):
                    raise
                raise EpisodeError(f"reward function {name} failed: {reason_of(error)}") from error
            if not isinstance(values, dict):
                raise EpisodeError(
                    f"reward function {name} returned {values!r}, which is not a dict of rewards by role"
                )
            if weight:
                _check_roles(name, values, rollout, arena)
            for role_id, value in values.items():
                number = finite_reward(value, f"reward function {name} for role {role_id}")
                rewards[role_id] = rewards.get(role_id, 0.0) + weight * number
                rollout.metrics[f"{name}/{role_id}"] = number
        for step in rollout.steps:
            if step.role_id not in rewards:
                raise EpisodeError(f"role {step.role_id} acted but no reward function scored it")
        for role_id, reward in rewards.items():
            finite_reward(reward, f"the weighted sum for role {role_id}")
        rollout.rewards = rewards
        for step in rollout.steps:
            step.reward = rewards[step.role_id]


def _check_roles(name: str, values: dict[str, float], rollout: Rollout, arena: Arena) -> None:
    """Reject rewards for roles that are not in the arena and have not acted."""
    known = list(dict.fromkeys([*arena.roles, *(step.role_id for step in rollout.steps)]))
    unknown = [str(role_id) for role_id in values if role_id not in known]
    if unknown and arena.roles:
        raise EpisodeError(
            f"reward function {name} rewards {unknown[0]!r}, which is not a role; the roles are "
            f"{', '.join(known)} (a function of weight 0 may use other names)"
        )


def _distinct(names: list[str]) -> list[str]:
    """Add a number to repeated names."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}-{number}"
        distinct.append(candidate)
    return distinct


def finite_reward(value: object, source: str) -> float:
    """Return ``value`` as a float; ``True`` becomes 1.

    Raises:
        EpisodeError: ``value`` is not a finite number (game libraries return strings and NaN).
    """
    if not isinstance(value, Real) or not math.isfinite(value):
        raise EpisodeError(f"{source} gave {value!r}, which is not a finite number")
    return float(value)
