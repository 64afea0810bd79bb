"""Sampling-reward transforms: from the rewards of a drawn batch to what its steps are trained with."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from selfplay.core import Step
from selfplay.replay.transforms_base import RewardTransform, compose_state, load_compose_state

# Keeps a division by a very small deviation in bounds; the original's value.
STD_EPSILON = 1e-8


class SamplingRewardTransform(RewardTransform, ABC):
    """Changes the rewards of a batch in place. It may leave steps out, but adds none."""

    @abstractmethod
    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their new rewards."""


class ComposeSamplingRewardTransforms(SamplingRewardTransform):
    """Applies transforms one after the other."""

    def __init__(self, transforms: Sequence[SamplingRewardTransform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps after every transform."""
        for transform in self.transforms:
            steps = transform(steps)
        return steps

    def state_dict(self) -> dict[str, Any]:
        """Return the transforms' states."""
        return compose_state(self.transforms)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give the transforms their states back."""
        load_compose_state(self.transforms, state)


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean reward: r - mean, or with ``z_score`` (r - mean) / (std + 1e-8).

    ``std`` is the population standard deviation. Equal rewards become exactly 0, never NaN.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with normalised rewards."""
        _normalize(steps, self.z_score)
        return steps


class NormalizeRewardsByEnv(SamplingRewardTransform):
    """``NormalizeRewards`` within the steps of each environment id.

    Releases 0.2.0 to 0.2.2 of the original divide by the bare deviation and add 1e-8 after, which gives NaN
    where all rewards are equal; here they become 0.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with normalised rewards."""
        for bucket in _buckets(steps, lambda step: step.env_id):
            _normalize(bucket, self.z_score)
        return steps


class SamePromptBaseline(SamplingRewardTransform):
    """Subtracts from each reward the mean reward of the batch's other steps with the same prompt.

    For n steps with the same ``prompt_token_ids`` and rewards summing to S, the baseline of a step with
    reward r is (S - r) / (n - 1): leave-one-out, as in RLOO (arXiv 2402.14740), so that it stays unbiased.
    A step whose prompt no other step shares, or that has no token ids, takes the same mean over the steps of
    its seat, (env_id, pid); one that is alone there too keeps its reward.
    """

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their rewards over the baseline."""
        baselines = [0.0] * len(steps)
        positions = {id(step): position for position, step in enumerate(steps)}
        same_seat = _buckets(steps, lambda step: (step.env_id, step.pid))
        same_prompt = _buckets(
            [step for step in steps if step.prompt_token_ids is not None],
            lambda step: tuple(step.prompt_token_ids or ()),
        )
        for bucket in [*same_seat, *same_prompt]:
            if len(bucket) == 1:
                continue
            total = math.fsum(step.reward for step in bucket)
            for step in bucket:
                baselines[positions[id(step)]] = (total - step.reward) / (len(bucket) - 1)
        for step, baseline in zip(steps, baselines, strict=True):
            step.reward -= baseline
        return steps


def _buckets(steps: list[Step], key_of: Callable[[Step], Hashable]) -> list[list[Step]]:
    """Group steps by a key, groups and steps in order of appearance."""
    buckets: dict[Hashable, list[Step]] = {}
    for step in steps:
        buckets.setdefault(key_of(step), []).append(step)
    return list(buckets.values())


def _normalize(steps: list[Step], z_score: bool) -> None:
    """Centre, and with ``z_score`` scale, the rewards of ``steps`` in place."""
    rewards = [step.reward for step in steps]
    if not rewards or min(rewards) == max(rewards):
        # Said outright, because rounding in the mean would leave a tiny remainder.
        centred, scale = [0.0] * len(rewards), 1.0
    else:
        mean = math.fsum(rewards) / len(rewards)
        centred = [reward - mean for reward in rewards]
        std = math.sqrt(math.fsum(value * value for value in centred) / len(rewards))
        scale = std + STD_EPSILON if z_score else 1.0
    for step, value in zip(steps, centred, strict=True):
        step.reward = value / scale
