"""What every credit assigner is, how its advantages reach the steps, and those that remember nothing between
batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
from typing import Any, Literal

from sparring.core.errors import EpisodeError, InputError, shown
from sparring.core.own_code import method_of, returned
from sparring.core.played import finite_reward
from sparring.core.types import GenerateResult, Rollout, Step

RolloutStepKey = tuple[str, int]


class CreditAssigner(ABC):
    """Computes an advantage for every step of every trainable rollout."""

    @abstractmethod
    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return advantages keyed by (rollout id, step index)."""

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able state that a checkpoint must keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most assigners have no state
        """Continue from :meth:`state_dict`."""


def assigned(credit: CreditAssigner, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
    """Return the advantages that ``credit`` computes; raise an EpisodeError unless they are one finite number
    for each trained step."""
    source = method_of(credit, "compute")
    weights = returned(credit.compute(results), dict, source)
    keys = {
        (rollout.id, index): step.policy
        for rollout in trained_rollouts(results)
        for index, step in enumerate(rollout.steps)
    }
    for key in weights:
        if key not in keys:
            raise EpisodeError(f"{source} has the key {shown(key)}, not (rollout id, step index) of a step")
    missing = next((key for key, policy in keys.items() if policy and key not in weights), None)
    if missing is not None:
        raise EpisodeError(f"{source} gave no advantage for step {missing[1]} of the rollout {missing[0]}")
    return {key: finite_reward(weight, f"{source} for a step") for key, weight in weights.items()}


TARGET = "target"
"""In ``step.info``: the weight of a target, an answer that was given as the right one and not drawn.

Its advantage is the weight, whatever its reward, and no credit assigner sees the step. At the policy that
gave the log-probabilities, a policy gradient is then the weight times the gradient of the answer's
log-likelihood: supervised learning."""


def assign(
    credit: CreditAssigner, results: list[GenerateResult], critics: frozenset[str] = frozenset()
) -> None:
    """Write the advantage of every trained step: what ``credit`` computes, its reward, or a target's weight.

    The steps of policies in ``critics`` have their reward, of which the learner makes advantages with a
    critic. ``credit`` sees neither them nor targets as trained, so that they are in no mean and no baseline.
    Raises an InputError for a target of a policy with a critic.
    """
    trained = {
        (rollout.id, index): step
        for rollout in trained_rollouts(results)
        for index, step in enumerate(rollout.steps)
        if step.policy
    }
    apart = {key: _apart(step, critics) for key, step in trained.items()}
    own = {key: weight for key, weight in apart.items() if weight is not None}
    if not own:
        weights = assigned(credit, results)
    elif len(own) < len(trained):
        weights = assigned(credit, [_without_own(critics, result) for result in results]) | own
    else:
        weights = own  # an assigner of one's own may not expect that there is nothing
    apply_credit(results, weights)


def _apart(step: Step, critics: frozenset[str]) -> float | None:
    """Return the advantage of a step that no credit assigner sees; ``None`` for any other."""
    is_judged = step.policy in critics
    if TARGET not in step.info:
        return step.reward if is_judged else None
    if is_judged:
        problem = f"the policy {step.policy} is given right answers, of which a critic learns nothing"
        raise InputError("learning.critic", problem, "Give the critic to the other policies only")
    return finite_reward(step.info[TARGET], "the weight of a target")


def _without_own(critics: frozenset[str], result: GenerateResult) -> GenerateResult:
    """Return a copy in which the steps that credit does not see are not trained."""
    rollout = result.rollout
    steps = [
        replace(step, policy="") if step.policy and _apart(step, critics) is not None else step
        for step in rollout.steps
    ]
    children = [_without_own(critics, child) for child in result.children]
    return GenerateResult(replace(rollout, steps=steps), children, result.is_trainable)


def apply_credit(results: list[GenerateResult], weights: dict[RolloutStepKey, float]) -> None:
    """Write ``weights`` into ``step.advantage``, in place. Steps without a weight keep their advantage.

    ``rollout.advantages`` becomes the mean over the steps of each role.
    """
    for rollout in trained_rollouts(results):
        by_role: dict[str, list[float]] = {}
        for index, step in enumerate(rollout.steps):
            step.advantage = weights.get((rollout.id, index), step.advantage)
            by_role.setdefault(step.role_id, []).append(step.advantage)
        rollout.advantages = {role: sum(values) / len(values) for role, values in by_role.items()}


def trained_rollouts(results: list[GenerateResult]) -> Iterable[Rollout]:
    """Yield the trainable rollouts of all levels, parents first."""
    return (rollout for result in results for rollout in result.trainable_rollouts())


def trained_roles(rollout: Rollout) -> dict[str, str]:
    """Return the roles that a policy is trained on, each with the policy, in order of their first step."""
    return {step.role_id: step.policy for step in rollout.steps if step.policy}


def steps_of_role(rollout: Rollout, role_id: str) -> list[RolloutStepKey]:
    """Return the keys of the role's steps."""
    return [(rollout.id, index) for index, step in enumerate(rollout.steps) if step.role_id == role_id]


@dataclass
class ConstantCredit(CreditAssigner):
    """Gives every step the same advantage."""

    value: float = 1.0

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        return {
            (rollout.id, index): self.value
            for rollout in trained_rollouts(results)
            for index in range(len(rollout.steps))
        }


class EpisodicRewardCredit(CreditAssigner):
    """Gives each step its role's reward as its advantage (plain REINFORCE)."""

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        return {
            (rollout.id, index): step.reward
            for rollout in trained_rollouts(results)
            for index, step in enumerate(rollout.steps)
        }


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
    """Return the share of the groups in which all rewards are equal, so that they teach nothing; ``None``
    without a group."""
    groups = [{entry.reward for entry in group} for group in groups_of(results, grouping)]
    return sum(len(rewards) == 1 for rewards in groups) / len(groups) if groups else None


def mean_group_size(results: list[GenerateResult], grouping: Grouping = "seat") -> float | None:
    """Return the mean number of rewards that are compared with each other; ``None`` without a group."""
    sizes = [len(group) for group in groups_of(results, grouping)]
    return sum(sizes) / len(sizes) if sizes else None


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

    A group of one has advantage 0. ``normalize`` divides by the group's standard deviation (over N, not N -
    1) where it exceeds 1e-8; ``positive_only`` sets negative advantages to 0.
    """

    normalize: bool = False
    positive_only: bool = False
    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        return _within_groups(results, self.group, self._advantages)

    def _advantages(self, rewards: list[float]) -> list[float]:
        advantages = centred(rewards)
        if self.normalize:
            deviation = sqrt(sum(value * value for value in advantages) / len(advantages))
            if deviation > EPSILON:
                advantages = [value / deviation for value in advantages]
        return [max(value, 0.0) for value in advantages] if self.positive_only else advantages


@dataclass
class RLOOCredit(CreditAssigner):
    """REINFORCE leave-one-out: A_i = R_i - mean(R_j for j != i) (Ahmadian et al. 2024, arXiv 2402.14740).

    The baseline does not depend on the reward that it is subtracted from, so the gradient is unbiased. A
    group of one has advantage 0. With the grouping ``prompt``, only the step itself is left out.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        return _within_groups(results, self.group, _less_the_others)


def _within_groups(
    results: list[GenerateResult], grouping: Grouping, advantages: Callable[[list[float]], list[float]]
) -> dict[RolloutStepKey, float]:
    weights: dict[RolloutStepKey, float] = {}
    for entries in groups_of(results, grouping):
        weights |= weights_of(entries, advantages([entry.reward for entry in entries]))
    return weights


def _less_the_others(rewards: list[float]) -> list[float]:
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)  # also a single reward; exactly 0, without rounding
    total, others = fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


@dataclass
class ReinforcePPCredit(CreditAssigner):
    """REINFORCE++: A_i = (R_i - mean) / (std + 1e-8) over the whole batch (Hu et al. 2025, arXiv 2501.03262).

    Mean and population standard deviation are those of all rewards of the batch, over all levels, types and
    roles. The paper whitens over tokens; here each role of each rollout counts once. The paper also
    subtracts, before it whitens, the KL divergence from each token to the end of its answer, which is missing
    here.

    With ``by_role``, mean and deviation are those of one role in episodes of one type, over all levels: the
    task-relative REINFORCE++ of Absolute Zero (Zhao et al. 2025, arXiv 2505.03335), which has a baseline for
    each task of a proposer and of a solver.
    """

    by_role: bool = False

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        parts: dict[object, list[GroupEntry]] = {}
        for rollout in trained_rollouts(results):
            for role_id, policy in trained_roles(rollout).items():
                part = (rollout.episode_type, role_id, policy) if self.by_role else None
                entry = GroupEntry(rollout.rewards[role_id], steps_of_role(rollout, role_id))
                parts.setdefault(part, []).append(entry)
        weights: dict[RolloutStepKey, float] = {}
        for entries in parts.values():
            weights |= weights_of(entries, _whitened([entry.reward for entry in entries]))
        return weights


@dataclass
class ReinforcePPBaselineCredit(CreditAssigner):
    """REINFORCE++ with baseline: R_i less its group's mean, then whitened over the whole batch.

    B_i = R_i - mean(R_1, ..., R_N) of the group; A_i = (B_i - mean) / (std + 1e-8) over the batch (Hu et al.
    2025, arXiv 2501.03262). With the grouping ``prompt``, each step counts once in the batch.
    """

    group: Grouping = "seat"

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
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
