"""Rewards relative to those of a group: GRPO, leave-one-out and REINFORCE++."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Literal

from sparring.core.credit.base import (
    CreditAssigner,
    RolloutStepKey,
    steps_of_role,
    trained_roles,
    trained_rollouts,
)
from sparring.core.types import GenerateResult, Rollout

EPSILON = 1e-8
"""Bounds a division by a very small deviation."""

Grouping = Literal["seat", "prompt"]
"""With ``seat``, a group holds the rewards of one role, trained as one policy, in episodes of one type with
the same ``meta["group"]``, if it is set, within one level: the top level, or the children of one parent. All
steps of a role in a rollout have one advantage.

With ``prompt``, a group holds single steps: those of one role and policy in episodes of one type whose
``prompt_token_ids`` are the same, at any level and whatever ``meta["group"]`` is, because the prompt is all
that the policy knows. Each step has an advantage of its own and counts as one reward, that of its role, also
if one rollout has several steps at the prompt. A step without token ids is a group of its own."""


@dataclass(frozen=True)
class GroupEntry:
    """One reward of a group, and the steps that get its advantage."""

    reward: float
    steps: list[RolloutStepKey]


def groups_of(results: list[GenerateResult], grouping: Grouping) -> list[list[GroupEntry]]:
    """Return the groups of a batch. Every trained step is in exactly one entry."""
    if grouping == "prompt":
        return _groups_by_prompt(results)
    return [group for level in _levels(results) for group in _groups_by_seat(level)]


def weights_of(entries: Iterable[GroupEntry], advantages: Iterable[float]) -> dict[RolloutStepKey, float]:
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


def _groups_by_prompt(results: list[GenerateResult]) -> list[list[GroupEntry]]:
    groups: dict[object, list[GroupEntry]] = {}
    for rollout in trained_rollouts(results):
        for index, step in enumerate(rollout.steps):
            if step.policy:
                own = (rollout.id, index)
                ids = tuple(step.prompt_token_ids or ())
                group = (rollout.episode_type, step.role_id, step.policy, ids) if ids else own
                groups.setdefault(group, []).append(GroupEntry(rollout.rewards[step.role_id], [own]))
    return list(groups.values())


def _groups_by_seat(level: list[Rollout]) -> Iterable[list[GroupEntry]]:
    groups: dict[object, list[GroupEntry]] = {}
    for rollout in level:
        for role_id, policy in trained_roles(rollout).items():
            group = (rollout.episode_type, rollout.meta.get("group"), role_id, policy)
            entry = GroupEntry(rollout.rewards[role_id], steps_of_role(rollout, role_id))
            groups.setdefault(group, []).append(entry)
    return groups.values()


def _levels(results: list[GenerateResult]) -> Iterable[list[Rollout]]:
    """Yield the lists of rollouts that are compared with each other: siblings, parents first."""
    trained = [result for result in results if result.is_trainable]
    yield [result.rollout for result in trained]
    for result in trained:
        if result.children:
            yield from _levels(result.children)


@dataclass
class GRPOCredit(CreditAssigner):
    """Rewards relative to their group's mean: A_i = R_i - mean(R_1, ..., R_N) (Shao et al. 2024).

    A group of one has advantage 0. To compare only answers to the same prompt, use the grouping ``prompt``,
    or name the prompt in ``meta["group"]``.

    Args:
        normalize: divide by the group's standard deviation (over N, not N - 1) where it exceeds 1e-8.
        positive_only: set negative advantages to 0.
        group: what a group is, see :data:`Grouping`.
    """

    normalize: bool = False
    positive_only: bool = False
    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        weights: dict[RolloutStepKey, float] = {}
        for entries in groups_of(results, self.group):
            weights |= weights_of(entries, self._advantages([entry.reward for entry in entries]))
        return weights

    def _advantages(self, rewards: list[float]) -> list[float]:
        advantages = centred(rewards)
        if self.normalize:
            deviation = sqrt(sum(value * value for value in advantages) / len(advantages))
            if deviation > 1e-8:
                advantages = [value / deviation for value in advantages]
        return [max(value, 0.0) for value in advantages] if self.positive_only else advantages


@dataclass
class RLOOCredit(CreditAssigner):
    """REINFORCE leave-one-out: A_i = R_i - mean(R_j for j != i) (Ahmadian et al. 2024, arXiv 2402.14740).

    The baseline does not depend on the reward that it is subtracted from, so the gradient is unbiased; the
    advantage is N / (N - 1) times that of GRPO without normalisation. A group of one has advantage 0. With
    the grouping ``prompt``, only the step itself is left out, not the other steps of its episode.

    Args:
        group: what a group is, see :data:`Grouping`.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        weights: dict[RolloutStepKey, float] = {}
        for entries in groups_of(results, self.group):
            weights |= weights_of(entries, _less_the_others([entry.reward for entry in entries]))
        return weights


def _less_the_others(rewards: list[float]) -> list[float]:
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # also a single reward; exactly 0, without rounding
    total, others = fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


class ReinforcePPCredit(CreditAssigner):
    """REINFORCE++: A_i = (R_i - mean) / (std + 1e-8) over the whole batch (Hu et al. 2025, arXiv 2501.03262).

    Mean and population standard deviation are those of all rewards of the batch, over all levels, types and
    roles. Equal rewards give exactly 0.

    The paper whitens over tokens, so that a longer answer counts more often. Here each role of each rollout
    counts once, whatever the number of its steps and tokens. The paper also subtracts, before it whitens, the
    KL divergence from each token to the end of its answer, which is missing here.
    """

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, which is the same for all steps of a role in a rollout."""
        entries = [entry for group in groups_of(results, "seat") for entry in group]
        return weights_of(entries, _whitened([entry.reward for entry in entries]))


@dataclass
class ReinforcePPBaselineCredit(CreditAssigner):
    """REINFORCE++ with baseline: R_i less its group's mean, then whitened over the whole batch.

    B_i = R_i - mean(R_1, ..., R_N) of the group; A_i = (B_i - mean) / (std + 1e-8) over the batch (Hu et al.
    2025, arXiv 2501.03262). A group of one has B = 0. Everything else is as in :class:`ReinforcePPCredit`;
    with the grouping ``prompt``, each step counts once in the batch.

    Args:
        group: what a group is, see :data:`Grouping`.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage."""
        groups = groups_of(results, self.group)
        differences = [value for group in groups for value in centred([entry.reward for entry in group])]
        entries = [entry for group in groups for entry in group]
        return weights_of(entries, _whitened(differences))


def _whitened(values: Sequence[float]) -> list[float]:
    """Return the values less their mean, divided by their standard deviation; exactly 0 if all are equal."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = fsum(values) / len(values)
    differences = [value - mean for value in values]
    std = sqrt(fsum(difference * difference for difference in differences) / len(differences))
    return [difference / (std + EPSILON) for difference in differences]
