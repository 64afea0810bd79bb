"""Episodes in a buffer: the trajectories that it stores, and what a credit assigner makes of a batch.

:func:`trajectories_of_roles` takes a program's episodes apart; :class:`CreditTransform` puts the steps that a
buffer has drawn together to episodes again.
"""

from collections.abc import Iterator, Mapping

from selfplay.core import CreditAssigner, GenerateResult, Rollout, Step, Trajectory
from selfplay.core.credit.base import assigned
from selfplay.core.own_code import state_of
from selfplay.replay.transforms import SamplingRewardTransform


class CreditTransform(SamplingRewardTransform):
    """Gives drawn steps the advantages of a credit assigner.

    The steps of one game are one episode again, in which each role has the mean reward of its steps. A step
    whose own reward differs from that, by a step transform for example, keeps the difference. Sub-episodes
    are in one group only if they have the same parent. If a batch has only some games of a group, they are
    compared with each other alone.
    """

    def __init__(self, credit: CreditAssigner) -> None:
        self.credit = credit

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their advantages."""
        played: dict[str, list[Step]] = {}
        for step in steps:
            played.setdefault(step.info.get("rollout_id") or str(id(step)), []).append(step)
        episodes = [_episode(rollout_id, own) for rollout_id, own in played.items()]
        advantages = assigned(self.credit, [GenerateResult(episode) for episode in episodes])
        for episode, own in zip(episodes, played.values(), strict=True):
            for index, step in enumerate(own):
                difference = step.advantage - episode.rewards[step.role_id]
                step.advantage = advantages.get((episode.id, index), 0.0) + difference
        return steps

    def state_dict(self) -> dict[str, object]:
        """Return the credit assigner's state."""
        return state_of(self.credit)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the credit assigner's state."""
        self.credit.load_state_dict(state)


def _episode(rollout_id: str, steps: list[Step]) -> Rollout:
    """Return the episode of drawn steps, in which each has the mean of its role as its reward."""
    of_role: dict[str, list[float]] = {}
    for step in steps:
        of_role.setdefault(step.role_id, []).append(step.advantage)
    rewards = {role_id: sum(values) / len(values) for role_id, values in of_role.items()}
    first = steps[0]
    return Rollout(
        episode_type=first.env_id,
        id=rollout_id,
        meta={"group": (first.info.get("parent_id"), first.info.get("group"))},
        steps=[step.scored(rewards[step.role_id], step.info, step.env_id) for step in steps],
        rewards=rewards,
    )


def trajectories_of_roles(result: GenerateResult, pids: Mapping[str, int]) -> list[Trajectory]:
    """Return a trajectory for each role of each trainable episode that a policy is trained on.

    Args:
        result: a finished episode with its sub-episodes.
        pids: the number of each role, which takes the place of a seat in reward transforms.
    """
    return [
        _trajectory(rollout, parent_id, role_id, pids)
        for rollout, parent_id in _with_parents(result, None)
        for role_id in dict.fromkeys(step.role_id for step in rollout.steps if step.policy)
    ]


def _with_parents(result: GenerateResult, parent_id: str | None) -> Iterator[tuple[Rollout, str | None]]:
    """Yield the trainable rollouts with the ids of their parents, parents first."""
    if result.is_trainable:
        yield result.rollout, parent_id
        for child in result.children:
            yield from _with_parents(child, result.rollout.id)


def _trajectory(rollout: Rollout, parent_id: str | None, role_id: str, pids: Mapping[str, int]) -> Trajectory:
    pid, family = pids[role_id], {"parent_id": parent_id, "group": rollout.meta.get("group")}
    own = [step for step in rollout.steps if step.role_id == role_id and step.policy]
    steps = [step.scored(step.reward, {**step.info, **family}, rollout.episode_type) for step in own]
    for step in steps:
        step.pid = pid
    return Trajectory(
        pid=pid,
        env_id=rollout.episode_type,
        final_reward=rollout.rewards[role_id],
        steps=steps,
        final_rewards={pids[role]: reward for role, reward in rollout.rewards.items() if role in pids},
        role_id=role_id,
        rollout_id=rollout.id,
        num_turns=len(rollout.steps),
    )
