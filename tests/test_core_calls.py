"""What the arena and an episode hand to each other: seeds, ids, limits, and the arguments of hooks."""

import asyncio

import pytest

from core_programs import Ask, Family, SeedClient, make_arena, parents
from sparring.core import (
    Arena,
    ChatEpisode,
    EpisodeRequest,
    EpisodeState,
    MockInferenceClient,
    Role,
    Rubric,
    derive_seed,
)
from sparring.core.errors import reason_of


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


async def test_requests_outside_of_steps_get_seeds_of_the_arena_and_ids_of_their_own():
    arena = make_arena(seed=3)
    results = await arena.generate_rollouts([EpisodeRequest("child", number) for number in range(3)])
    seeds = [result.rollout.meta["seed"] for result in results]
    assert seeds == [derive_seed(3, "rollouts", 0, index) for index in range(3)]
    assert len({result.rollout.id for result in results}) == 3


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


async def test_an_episode_cannot_change_the_number_of_calls_in_flight():
    class Narrow(Ask):
        async def rollout(self, arena, artifact, state=None):
            requests = [EpisodeRequest("child", number) for number in range(6)]
            await arena.generate_rollouts(requests, concurrency=1)
            return EpisodeState(done=True)

    client = CountingClient()
    await make_arena(client, parent=Narrow(), max_calls=4).run_episode("parent", None)
    assert client.most == 4
    client.most = 0
    await make_arena(client, max_calls=4).generate_rollouts(parents(6), concurrency=2)
    assert client.most == 2


async def test_an_episode_may_name_the_model_and_the_seed_of_a_call():
    class Named(Ask):
        async def rollout(self, arena, artifact, state=None):
            await self.call_model("solver", "?", arena, model="rival", seed=11)
            return EpisodeState(done=True)

    client = CountingClient()
    await make_arena(client, child=Named()).run_episode("child", None, {"seed": 1})
    assert (client.models, client.seeds) == (["rival"], [11])


async def test_the_hooks_of_a_chat_receive_the_arena_and_the_artifact():
    received = []

    class Watching(ChatEpisode):
        episode_type = "talk"
        rubric = Rubric([lambda rollout, arena: {"solver": 0.0}])

        def get_initial_actor(self, artifact, state):
            received.append(("get_initial_actor", artifact))
            return "solver"

        def get_initial_prompt(self, arena, artifact, state):
            received.append(("get_initial_prompt", arena, artifact))
            return "Begin."

        async def env_response(self, state, arena, artifact):
            received.append(("env_response", arena, artifact))
            return "Go on."

        def get_next_actor(self, state, artifact):
            received.append(("get_next_actor", artifact))
            return "solver"

        def is_done(self, state, artifact):
            received.append(("is_done", artifact))
            return state.turn == 2

    arena = Arena(MockInferenceClient(["one", "two"]))
    arena.add_role(Role("solver"))
    state = await Watching().rollout(arena, "topic")
    assert state.done is True
    assert {name for name, *_ in received} == {
        "get_initial_actor",
        "get_initial_prompt",
        "env_response",
        "get_next_actor",
        "is_done",
    }
    assert all(rest in ([arena, "topic"], ["topic"]) for _, *rest in received)


async def test_the_client_without_a_model_answers_with_an_assistants_message():
    response = await MockInferenceClient(["yes"]).complete([{"role": "user", "content": "a"}])
    assert response.completion == [{"role": "assistant", "content": "yes"}]


def test_an_error_that_was_never_raised_is_named_by_what_it_says():
    assert reason_of(ValueError("no")) == "ValueError('no')"
