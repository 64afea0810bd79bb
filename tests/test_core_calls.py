"""What the arena and an episode hand to each other: seeds, ids, limits, and the arguments of hooks."""

import asyncio

import pytest

from core_programs import Ask, Family, SeedClient, make_arena
from sparring.core import (
    EpisodeRequest,
    EpisodeState,
    MockInferenceClient,
    derive_seed,
)


class CountingClient(MockInferenceClient):
    """Keeps the seed and the model of every call, and how many calls were answered at once."""

    def __init__(self):
        super().__init__(["yes"] * 1000)
        self.seeds, self.models = [], []
        self.active = self.most = 0

    async def complete(self, *args, model=None, seed=None, **options):
        self.seeds.append(seed)
        self.models.append(model)
        self.active += 1
        self.most = max(self.most, self.active)
        for _ in range(4):
            await asyncio.sleep(0)
        self.active -= 1
        return await super().complete(*args, model=model, seed=seed, **options)


class Thrice(Ask):
    """Makes three calls."""

    async def rollout(self, arena, artifact, state=None):
        for _ in range(3):
            await arena.call_model("?", role_id="solver")
        return EpisodeState(done=True)


async def test_calls_and_sub_episodes_get_numbered_seeds_of_their_episode():
    client = CountingClient()
    arena = make_arena(client, child=Thrice(), parent=Family(children=2))
    await arena.run_episode("child", None, {"seed": 5})
    assert client.seeds == [derive_seed(5, "call", number) for number in range(3)]
    result = await arena.run_episode("parent", None, {"seed": 7})
    assert [child.rollout.meta["seed"] for child in result.children] == [
        derive_seed(7, "child", number) for number in range(2)
    ]
    client.seeds.clear()
    await arena.run_episode("child", None)
    assert client.seeds == [None] * 3


@pytest.mark.parametrize("verbose", [False, True])
async def test_a_failed_episode_has_an_id_of_its_own(verbose, capsys):
    class Failing(Ask):
        async def rollout(self, arena, artifact, state=None):
            raise ValueError(artifact)

    arena = make_arena(child=Failing(), retries=0, verbose=verbose)
    results = await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(3)])
    ids = {result.rollout.id for result in results}
    assert len(ids) == 3
    assert all(len(one) == 32 for one in ids)


async def test_an_artifact_that_is_not_found_in_time_costs_its_episode():
    class Waiting(type(make_arena())):
        async def resolve_artifact(self, request):
            await asyncio.Event().wait()

    arena = Waiting(SeedClient(), episode_timeout=0.01, retries=0)
    arena.add_episode("child", Ask())
    async with asyncio.timeout(60):
        (result,) = await arena.generate_rollouts([EpisodeRequest("child", 0)])
    assert result.rollout.error == "resolve_artifact took longer than 0.01 s"


async def test_as_many_outermost_episodes_run_at_once_as_calls_are_allowed():
    running, most = 0, 0

    class Silent(Ask):
        async def rollout(self, arena, artifact, state=None):
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return EpisodeState(done=True)

    arena = make_arena(child=Silent(), max_calls=3)
    await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(9)])
    assert most == 3
    most = 0
    await make_arena(parent=Family(children=9), child=Silent(), max_calls=3).run_episode("parent", None)
    assert most == 9


async def test_an_episode_may_name_the_model_and_the_seed_of_a_call():
    class Named(Ask):
        async def rollout(self, arena, artifact, state=None):
            await self.call_model("solver", "?", arena, model="rival", seed=11)
            return EpisodeState(done=True)

    client = CountingClient()
    await make_arena(client, child=Named()).run_episode("child", None, {"seed": 1})
    assert (client.models, client.seeds) == (["rival"], [11])


async def test_a_step_has_the_seeds_of_its_run_and_what_a_request_says_itself():
    requests = [
        EpisodeRequest("child", 0),
        EpisodeRequest("child", 1, {"policy_version": 2, "topic": "sums"}),
    ]
    arena = make_arena(requests=requests, seed=3)
    await arena.step()
    _, results = await arena.play_step()
    metas = [result.rollout.meta for result in results]
    assert [meta["seed"] for meta in metas] == [derive_seed(3, "step", 2, index) for index in range(2)]
    assert [meta["rollout_id"] for meta in metas] == ["step-000002-00000", "step-000002-00001"]
    assert [(meta["step"], meta["policy_version"]) for meta in metas] == [(2, 0), (2, 2)]
    assert metas[1]["topic"] == "sums"
    outside = await arena.generate_rollouts(requests)
    seeds = [result.rollout.meta["seed"] for result in outside]
    assert seeds == [derive_seed(3, "rollouts", 3, index) for index in range(2)]


async def test_a_sub_episodes_own_meta_is_not_overwritten_by_its_parents():
    parent = Family()
    parent.requests = [
        EpisodeRequest("child", 0, {"policy_version": 2, "seed": 5}),
        EpisodeRequest("child", 1),
    ]
    arena = make_arena(parent=parent)
    result = await arena.run_episode("parent", 0, {"policy_version": 1, "seed": 7})
    metas = [child.rollout.meta for child in result.children]
    assert [(meta["policy_version"], meta["seed"]) for meta in metas] == [
        (2, 5),
        (1, derive_seed(7, "child", 1)),
    ]


async def test_an_episode_cannot_change_the_number_of_calls_in_flight():
    class Narrow(Ask):
        async def rollout(self, arena, artifact, state=None):
            requests = [EpisodeRequest("child", number) for number in range(6)]
            await arena.generate_rollouts(requests, concurrency=1)
            return EpisodeState(done=True)

    client = CountingClient()
    await make_arena(client, parent=Narrow(), max_calls=4).run_episode("parent", None)
    assert client.most == 4
