"""Groups: which rewards a credit assigner compares with each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from selfplay.core.credit.base import RolloutStepKey, steps_of_role, trained_roles, trained_rollouts
from selfplay.core.types import GenerateResult, Rollout

Grouping = Literal["seat", "prompt"]
"""With ``seat``, a group holds the rewards of one role, trained as one policy, in episodes of one type with
the same ``meta["group"]``, if it is set, within one level: the top level, or the children of one parent. All
steps of a role in a rollout have one advantage.

With ``prompt``, a group holds single steps: those of one role and policy in episodes of one type whose
``prompt_token_ids`` are the same, at any level and whatever ``meta["group"]`` is, because the prompt is all
that the policy knows. Each step has an advantage of its own and counts as one reward, that of its role, also
if one rollout has several steps at the prompt. A step without token ids is a group of its own."""


@dataclass(frozen=True)
class Entry:
    """One reward of a group, and the steps that get its advantage."""

    reward: float
    steps: list[RolloutStepKey]


def groups_of(results: list[GenerateResult], grouping: Grouping) -> list[list[Entry]]:
    """Return the groups of a batch. Every trained step is in exactly one entry."""
    if grouping == "prompt":
        return _groups_by_prompt(results)
    return [group for level in _levels(results) for group in _groups_by_seat(level)]


def weights_of(entries: Iterable[Entry], advantages: Iterable[float]) -> dict[RolloutStepKey, float]:
    """Return the advantage of each step from those of the entries, which are in the same order."""
    return {
        key: advantage for entry, advantage in zip(entries, advantages, strict=True) for key in entry.steps
    }


def centred(rewards: Sequence[float]) -> list[float]:
    """Return the rewards less their mean. Equal rewards become exactly 0."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # the mean of equal numbers can differ from them by rounding
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def equal_group_share(results: list[GenerateResult], grouping: Grouping = "seat") -> float | None:
    """Return the share of the groups in which all rewards are equal, so that they teach nothing.

    Returns:
        A share between 0 and 1, or ``None`` if no role acted.
    """
    groups = [{entry.reward for entry in group} for group in groups_of(results, grouping)]
    return sum(len(rewards) == 1 for rewards in groups) / len(groups) if groups else None


def _groups_by_prompt(results: list[GenerateResult]) -> list[list[Entry]]:
    groups: dict[object, list[Entry]] = {}
    for rollout in trained_rollouts(results):
        for index, step in enumerate(rollout.steps):
            if step.policy:
                own = (rollout.id, index)
                ids = tuple(step.prompt_token_ids or ())
                group = (rollout.episode_type, step.role_id, step.policy, ids) if ids else own
                groups.setdefault(group, []).append(Entry(rollout.rewards[step.role_id], [own]))
    return list(groups.values())


def _groups_by_seat(level: list[Rollout]) -> Iterable[list[Entry]]:
    groups: dict[object, list[Entry]] = {}
    for rollout in level:
        for role_id, policy in trained_roles(rollout).items():
            group = (rollout.episode_type, rollout.meta.get("group"), role_id, policy)
            entry = Entry(rollout.rewards[role_id], steps_of_role(rollout, role_id))
            groups.setdefault(group, []).append(entry)
    return groups.values()


def _levels(results: list[GenerateResult]) -> Iterable[list[Rollout]]:
    """Yield the lists of rollouts that are compared with each other: siblings, parents first."""
    trained = [result for result in results if result.is_trainable]
    yield [result.rollout for result in trained]
    for result in trained:
        if result.children:
            yield from _levels(result.children)
