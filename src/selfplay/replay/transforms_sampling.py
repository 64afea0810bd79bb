"""Sampling-reward transforms: they map the rewards of a drawn batch to the rewards used in training."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from selfplay.core import Step
from selfplay.replay.transforms_base import ComposedTransforms, RewardTransform

# Bounds a division by a very small deviation; the value of UnstableBaselines.
STD_EPSILON = 1e-8

# Weight of the seat's mean in ``SamePromptBaseline``, as a number of steps at the same prompt.
SEAT_WEIGHT = 4.0


class SamplingRewardTransform(RewardTransform, ABC):
    """Changes the rewards of a batch in place. It may leave out steps, but must not add any."""

    @abstractmethod
    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their new rewards."""


class ComposeSamplingRewardTransforms(ComposedTransforms[SamplingRewardTransform], SamplingRewardTransform):
    """Applies transforms one after the other."""

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps after every transform."""
        for transform in self.transforms:
            steps = transform(steps)
        return steps


class BesideCritics(SamplingRewardTransform):
    """Applies a transform to the steps of the policies that have no critic.

    The others keep their rewards, of which the learner makes advantages with the critic. The transform does
    not see them, so that they are in no mean and no baseline.
    """

    def __init__(self, transform: SamplingRewardTransform, critics: frozenset[str]) -> None:
        self.transform = transform
        self.critics = critics

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps, in their order, without those that the transform leaves out."""
        others = [step for step in steps if step.policy not in self.critics]
        kept = {id(step) for step in self.transform(others)} if others else set()
        return [step for step in steps if step.policy in self.critics or id(step) in kept]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the transform."""
        return self.transform.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the transform."""
        self.transform.load_state_dict(state)


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

    Releases 0.2.0 to 0.2.2 of UnstableBaselines divide by the deviation alone and add 1e-8 afterwards, which
    gives NaN if all rewards are equal; here they become 0.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with normalised rewards."""
        for bucket in _buckets(steps, lambda step: step.env_id):
            _normalize(bucket, self.z_score)
        return steps


class SamePromptBaseline(SamplingRewardTransform):
    """Subtracts from each reward a baseline of other episodes at the same prompt and in the same seat.

    Let n steps of other episodes share a step's ``prompt_token_ids``, with rewards that sum to S, and let m
    be the mean reward of the step's seat, (env_id, pid), over the batch's other episodes. Only steps of the
    same policy count, because another policy may have earned more or less there. The baseline is
    (S + k m) / (n + k) with k = ``SEAT_WEIGHT``. If many steps share the prompt, the baseline is about their
    mean, as in RLOO (arXiv 2402.14740). If few do, it shrinks towards the seat's mean, because the mean of
    one or two rewards is as noisy as a single reward and would add variance.

    All steps of a game carry its final reward, so the whole episode is left out (``info["rollout_id"]``; a
    step without one is its own episode) and the baseline never depends on the step's own outcome. In the
    seat's mean each episode counts once, whatever its length. A step that cannot be compared with any other
    episode keeps its reward.
    """

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their rewards less the baselines."""
        at_prompt: dict[int, tuple[float, int]] = {}
        for bucket in _buckets([step for step in steps if step.prompt_token_ids is not None], _prompt):
            at_prompt |= _rewards_of_others(bucket, once_per_episode=False)
        in_seat: dict[int, tuple[float, int]] = {}
        for bucket in _buckets(steps, lambda step: (step.policy, step.env_id, step.pid)):
            in_seat |= _rewards_of_others(bucket, once_per_episode=True)
        for step in steps:
            prompt_sum, prompt_count = at_prompt.get(id(step), (0.0, 0))
            seat_sum, seat_count = in_seat[id(step)]
            if seat_count:
                seat_mean = seat_sum / seat_count
                step.reward -= (prompt_sum + SEAT_WEIGHT * seat_mean) / (prompt_count + SEAT_WEIGHT)
            elif prompt_count:
                step.reward -= prompt_sum / prompt_count
        return steps


def _prompt(step: Step) -> Hashable:
    return step.policy, tuple(step.prompt_token_ids or ())


def _episode(step: Step) -> Hashable:
    return step.info.get("rollout_id") or id(step)


def _rewards_of_others(bucket: list[Step], once_per_episode: bool) -> dict[int, tuple[float, int]]:
    """Return sum and number of the rewards of all other episodes' steps in ``bucket``, by ``id`` of the step.

    With ``once_per_episode``, an episode counts as one reward, the mean of its steps' rewards.
    """
    episodes = _buckets(bucket, _episode)
    rewards = [[step.reward for step in episode] for episode in episodes]
    if once_per_episode:
        rewards = [[math.fsum(values) / len(values)] for values in rewards]
    total = math.fsum(value for values in rewards for value in values)
    count = sum(map(len, rewards))
    return {
        id(step): (total - math.fsum(own), count - len(own))
        for episode, own in zip(episodes, rewards, strict=True)
        for step in episode
    }


def _buckets(steps: list[Step], key_of: Callable[[Step], Hashable]) -> list[list[Step]]:
    """Group steps by a key; groups and steps are in order of appearance."""
    buckets: dict[Hashable, list[Step]] = {}
    for step in steps:
        buckets.setdefault(key_of(step), []).append(step)
    return list(buckets.values())


def _normalize(steps: list[Step], z_score: bool) -> None:
    """Centre, and with ``z_score`` scale, the rewards of ``steps`` in place."""
    rewards = [step.reward for step in steps]
    if not rewards or min(rewards) == max(rewards):
        # Set to 0 directly, because rounding in the mean would leave a tiny remainder.
        centred, scale = [0.0] * len(rewards), 1.0
    else:
        mean = math.fsum(rewards) / len(rewards)
        centred = [reward - mean for reward in rewards]
        std = math.sqrt(math.fsum(value * value for value in centred) / len(rewards))
        scale = std + STD_EPSILON if z_score else 1.0
    for step, value in zip(steps, centred, strict=True):
        step.reward = value / scale
