"""The two ways from reward to advantage, each usable in place of the other.

A credit assigner looks at whole episodes with their groups; a replay buffer with reward transforms at stored
steps. :class:`CreditTransform` lets a buffer use a credit assigner, and :func:`trajectories_of_roles` lets a
buffer store the episodes of a program.
"""

from collections.abc import Iterator, Mapping

from selfplay.core import CreditAssigner, GenerateResult, Rollout, Step, Trajectory
from selfplay.core.credit import assigned, state_of
from selfplay.replay.transforms_sampling import SamplingRewardTransform


class CreditTransform(SamplingRewardTransform):
    """A credit assigner as a transform of drawn steps: their rewards become advantages.

    The steps of one game are one episode again, in which each role has the mean reward of its steps. A step
    whose own reward differs from that, by a step transform for example, keeps the difference. Sub-episodes
    are in one group only if they have the same parent. If a batch has only some games of a group, they are
    compared with each other alone.
    """

    def __init__(self, credit: CreditAssigner) -> None:
        self.credit = credit

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their advantages as rewards."""
        rollouts: dict[object, Rollout] = {}
        for step in steps:
            rollout_id = step.info.get("rollout_id") or str(id(step))
            if rollout_id not in rollouts:
                meta = {"group": (step.info.get("parent_id"), step.info.get("group"))}
                rollouts[rollout_id] = Rollout(episode_type=step.env_id, id=rollout_id, meta=meta)
            rollouts[rollout_id].steps.append(step)
        own: dict[tuple[str, int], float] = {}
        for rollout in rollouts.values():
            rollout.rewards = _mean_rewards(rollout)
            for index, step in enumerate(rollout.steps):
                own[rollout.id, index] = step.reward - rollout.rewards[step.role_id]
                step.reward = rollout.rewards[step.role_id]
        results = [GenerateResult(rollout) for rollout in rollouts.values()]
        advantages = assigned(self.credit, results)
        for rollout in rollouts.values():
            for index, step in enumerate(rollout.steps):
                step.reward = advantages.get((rollout.id, index), 0.0) + own[rollout.id, index]
        return steps

    def state_dict(self) -> dict[str, object]:
        """Return the credit assigner's state."""
        return state_of(self.credit)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the credit assigner's state."""
        self.credit.load_state_dict(state)


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


def _mean_rewards(rollout: Rollout) -> dict[str, float]:
    by_role: dict[str, list[float]] = {}
    for step in rollout.steps:
        by_role.setdefault(step.role_id, []).append(step.reward)
    return {role_id: sum(rewards) / len(rewards) for role_id, rewards in by_role.items()}
