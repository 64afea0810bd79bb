"""Games by hand, and what a credit assigner makes of them."""

from sparring.core import GenerateResult, Rollout, Step


def at(prompt, role="a", policy="default"):
    """A step of ``role`` at the prompt with these ids."""
    return Step(role, [], [], prompt, [9], [-0.5], policy=policy)


def game(steps, rewards, *, kind="kuhn", children=(), group=None, trainable=True):
    """A result with these steps, whose roles earn ``rewards``."""
    meta = {} if group is None else {"group": group}
    rollout = Rollout(episode_type=kind, steps=steps, meta=meta)
    for role, reward in rewards.items():
        rollout.set_reward(role, reward)
    return GenerateResult(rollout, list(children), trainable)


def found(credit, results):
    """The advantages of each rollout's steps, parents first."""
    weights = credit.compute(results)
    rollouts = [rollout for result in results for rollout in result.trainable_rollouts()]
    return [[weights[one.id, index] for index in range(len(one.steps))] for one in rollouts]
