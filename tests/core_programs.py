"""Small arena programs for the tests of core."""

import asyncio
import random

from sparring.core import (
    Arena,
    EpisodeRequest,
    GenerateResult,
    MockInferenceClient,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    Step,
)


class SeedClient(MockInferenceClient):
    """Answers with the seed of the call; calls finish in an order that follows from ``order``."""

    def __init__(self, order=0):
        super().__init__(lambda messages, seed: f"answer {seed}")
        self.order = random.Random(order)

    async def complete(self, *args, **options):
        for _ in range(self.order.randrange(6)):
            await asyncio.sleep(0)
        return await super().complete(*args, **options)


class Ask(SingleTurnEpisode):
    """``role_id`` answers ``artifact``; its reward is ``reward(artifact)``."""

    def __init__(self, role_id="solver", reward=lambda artifact: 1.0):
        super().__init__()
        self.role_id = role_id
        self._rubric = Rubric([lambda rollout, arena: {role_id: reward(rollout.artifact)}])

    @property
    def episode_type(self):
        return f"ask {self.role_id}"

    @property
    def rubric(self):
        return self._rubric

    def get_initial_actor(self, artifact, state):
        return self.role_id

    def get_initial_prompt(self, arena, artifact, state):
        return f"about {artifact}"


class Family(Ask):
    """Asks, then runs ``children`` sub-episodes."""

    def __init__(self, role_id="proposer", children=2, reward=lambda artifact: 1.0, trainable=True):
        super().__init__(role_id, reward)
        self.requests = [
            EpisodeRequest("child", number, is_trainable=trainable) for number in range(children)
        ]

    async def rollout(self, arena, artifact, state=None):
        state = await super().rollout(arena, artifact, state)
        state.child_results += await arena.generate_rollouts(self.requests)
        return state


class BatchArena(Arena):
    """A step plays the requests it was given."""

    def __init__(self, client, requests=(), **options):
        super().__init__(client, **options)
        self.requests = list(requests)

    def get_batch(self):
        return self.requests


def parents(count):
    return [EpisodeRequest("parent", number) for number in range(count)]


def make_arena(client=None, requests=(), *, parent=None, child=None, **options):
    """An arena with a proposer's episode ``parent`` and a solver's ``child``."""
    arena = BatchArena(client or SeedClient(), requests, **options)
    arena.add_role(Role("proposer"))
    arena.add_role(Role("solver"))
    arena.add_episode("parent", parent or Family())
    arena.add_episode("child", child or Ask())
    return arena


def played(episode_type, rewards, *, steps=1, children=(), trainable=True, group=None, error=None):
    """A result as if it had been played: ``steps`` steps of each role in ``rewards``, in turn."""
    meta = {"group": group} if group is not None else {}
    if error is not None:
        meta["error"] = error
    rollout = Rollout(episode_type=episode_type, meta=meta, rewards=dict(rewards))
    rollout.steps = [step_of(role_id, reward) for _ in range(steps) for role_id, reward in rewards.items()]
    return GenerateResult(rollout, list(children), trainable)


def step_of(role_id, reward=0.0):
    prompt, answer = [{"role": "user", "content": "?"}], [{"role": "assistant", "content": "!"}]
    return Step(role_id, prompt, answer, [1, 2], [3, 0], [-0.5, -0.1], reward=reward)
