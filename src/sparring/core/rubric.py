"""Rubric: composable reward functions over a finished rollout."""

import inspect
from collections.abc import Awaitable, Callable

from sparring.core.arena import Arena
from sparring.core.errors import EpisodeError, shown
from sparring.core.own_code import returned
from sparring.core.played import check_rewards, finite_reward, is_bounded
from sparring.core.types import Rollout

RewardFn = Callable[[Rollout, Arena], dict[str, float] | Awaitable[dict[str, float]]]


class Rubric:
    """A weighted sum of reward functions, each of which returns rewards by role id.

    A function of weight 0 is a metric: it changes nothing but ``rollout.metrics``, and its keys may be any
    texts. Weights may be negative.
    """

    def __init__(self, funcs: list[RewardFn], weights: list[float] | None = None) -> None:
        weights = [1.0] * len(funcs) if weights is None else weights
        if len(weights) != len(funcs):
            raise ValueError(f"{len(funcs)} reward functions but {len(weights)} weights")
        for number, func in enumerate(funcs):
            if not callable(func):
                raise ValueError(f"reward function {number} is {shown(func)}, which is not callable")
        for weight in weights:
            if not is_bounded(weight):
                raise ValueError(f"the weight {shown(weight)} is not a finite number")
        self.funcs = funcs
        self.weights = weights
        self.names = _distinct([getattr(func, "__name__", type(func).__name__) for func in funcs])

    async def score(self, rollout: Rollout, arena: Arena) -> None:
        """Set ``rollout.rewards``, ``rollout.metrics`` and every ``step.reward``, in place.

        The metric of a function and role is ``FUNCTION/ROLE``; if two functions have the same name, the
        second is called ``FUNCTION-2``.

        Raises:
            EpisodeError: a function returned no dictionary of finite numbers, a reward is for a role that the
                arena does not have, or a role that acted got no reward. What a function raises passes.
        """
        rewards: dict[str, float] = {}
        for func, weight, name in zip(self.funcs, self.weights, self.names, strict=True):
            scored = func(rollout, arena)
            values = await scored if inspect.isawaitable(scored) else scored
            source = f"reward function {name}"
            for key, value in returned(values, dict, source).items():
                if not isinstance(key, str):
                    raise EpisodeError(f"{source} has the key {shown(key)}, which is not a text")
                rollout.metrics[f"{name}/{key}"] = finite_reward(value, f"{source} for {key}")
            if weight:
                _check_roles(name, values, rollout, arena)
                for role_id, value in values.items():
                    rewards[role_id] = rewards.get(role_id, 0.0) + weight * float(value)
        check_rewards(rewards, rollout.steps)
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
