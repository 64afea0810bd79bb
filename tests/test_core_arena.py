"""The arena runs episodes: seeds, inheritance, limits, and failures that cost one episode each."""

import asyncio
import time
from collections import Counter

import pytest

from core_programs import Ask, Family, SeedClient, make_arena, parents
from sparring.core import (
    Artifact,
    EpisodeRequest,
    InputError,
    MockInferenceClient,
    Role,
    Rubric,
    TransientError,
)
from sparring.core.current_episode import episode_counts


def trace(results):
    """Return all messages with their speakers, ids and seeds: everything except wall-clock times."""
    return [
        (one.id, one.meta, one.error, [(step.role_id, step.act, step.info) for step in one.steps])
        for result in results
        for one in result.all_rollouts()
    ]


# Seeds


@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_the_same_seed_gives_the_same_episodes_for_any_concurrency_and_order_of_finishing(concurrency):
    reference = make_arena(SeedClient(), parents(4), parent=Family(children=3))
    arena = make_arena(SeedClient(order=concurrency), parents(4), parent=Family(children=3))
    for _ in range(2):
        _, expected = await reference.play_step(concurrency=2)
        _, results = await arena.play_step(concurrency)
        assert trace(results) == trace(expected)


async def test_every_call_of_every_episode_and_step_has_its_own_seed():
    arena = make_arena(SeedClient(), parents(4), parent=Family(children=3))
    said = []
    for _ in range(2):
        batch, results = await arena.play_step()
        said += [step.act for result in results for one in result.all_rollouts() for step in one.steps]
        assert len(batch.records) == 16
    assert len(set(said)) == len(said) == 32


async def test_a_failed_call_changes_no_later_seed():
    class OnceDead(SeedClient):
        async def complete(self, *args, **options):
            self.calls += 1
            if self.calls % 5 == 2:
                raise ConnectionError("the line went dead")
            return await super().complete(*args, **options)

    smooth, bumpy = make_arena(SeedClient(), parents(4)), make_arena(OnceDead(), parents(4), retries=9)
    batch = await bumpy.step()
    expected = (await smooth.play_step())[0]
    assert batch.meta["retried"] > 0
    assert [one.completion_token_ids for one in batch.records] == [
        one.completion_token_ids for one in expected.records
    ]


async def test_a_judge_in_a_rubric_gets_repeatable_seeds_too():
    async def judge(rollout, arena):
        response = await arena.call_model([{"role": "user", "content": "who won?"}])
        rollout.extras["verdict"] = response.text
        return {"solver": 1.0}

    class Judged(Ask):
        rubric = Rubric([judge])

    verdicts = []
    for order in (1, 2):
        arena = make_arena(SeedClient(order), [EpisodeRequest("child", n) for n in range(6)], child=Judged())
        _, results = await arena.play_step()
        verdicts.append([result.rollout.extras["verdict"] for result in results])
    assert verdicts[0] == verdicts[1]
    assert len(set(verdicts[0])) == 6


# Inheritance


class Versioned(SeedClient):
    async def get_policy_version(self):
        return 7


async def test_children_inherit_version_and_step_but_have_their_own_ids_and_seeds():
    arena = make_arena(Versioned(), parents(2))
    arena.step_num = 3
    _, results = await arena.play_step()
    for index, result in enumerate(results):
        parent = result.rollout
        assert parent.id == f"step-000003-{index:05d}"
        assert (parent.meta["policy_version"], parent.meta["step"]) == (7, 3)
        for number, child in enumerate(result.children):
            meta = child.rollout.meta
            assert child.rollout.id == meta["rollout_id"] == f"{parent.id}.{number}"
            assert (meta["parent_id"], meta["policy_version"], meta["step"]) == (parent.id, 7, 3)
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    assert len({rollout.meta["seed"] for rollout in rollouts}) == len(rollouts) == 6


async def test_steps_and_records_have_the_episodes_version_if_the_client_gives_none():
    batch = await make_arena(Versioned(), parents(2)).step()
    assert [record.policy_version for record in batch.records] == [7] * 6
    assert batch.meta["policy_version"] == 7


async def test_a_version_given_by_the_client_is_used():
    class Knows(Versioned):
        async def complete(self, *args, **options):
            response = await super().complete(*args, **options)
            response.policy_version = 5
            return response

    batch = await make_arena(Knows(), parents(1)).step()
    assert [record.policy_version for record in batch.records] == [5, 5, 5]


@pytest.mark.parametrize("way", ["run_episode", "try_episode", "generate"])
async def test_sub_episodes_inherit_however_they_are_started(way):
    class Direct(Ask):
        async def rollout(self, arena, artifact, state=None):
            state = await super().rollout(arena, artifact, state)
            if way == "generate":
                child = await arena.episodes["child"].generate(arena, "x")
            else:
                child = await getattr(arena, way)("child", "x")
            state.child_results.append(child)
            return state

    arena = make_arena(Versioned(), parents(1), parent=Direct("proposer"))
    result = (await arena.play_step())[1][0]
    child = result.children[0].rollout
    assert child.id == "step-000001-00000.0"
    assert child.meta["policy_version"] == child.steps[0].policy_version == 7
    assert child.meta["parent_id"] == result.rollout.id
    assert "seed" in child.meta


async def test_requests_may_be_kept_and_repeated():
    """One request object, twice in each batch of two steps, gives four episodes."""
    request = EpisodeRequest("child", 1)
    arena = make_arena(SeedClient(), [request, request])
    ids, seeds = [], []
    for _ in range(2):
        for result in (await arena.play_step())[1]:
            ids.append(result.rollout.id)
            seeds.append(result.rollout.meta["seed"])
    assert len(set(ids)) == len(set(seeds)) == 4
    assert request.meta == {}


# Calls of the client


class Asked(MockInferenceClient):
    def __init__(self):
        super().__init__(["yes"])
        self.options = []

    async def complete(self, messages, temperature=1.0, max_tokens=None, return_tokens=True, **options):
        self.options.append((temperature, max_tokens, return_tokens, options["model"]))
        return await super().complete(messages, temperature, max_tokens, return_tokens, **options)


async def test_a_call_with_a_role_uses_its_settings_and_its_policy():
    arena = make_arena(Asked())
    arena.add_role(Role("solver", temperature=0.7, max_tokens=9, policy="pupil"))
    await arena.call_model([], "solver")
    await arena.call_model([], "solver", temperature=0.0, max_tokens=3, return_tokens=False, model="other")
    assert arena.client.options == [(0.7, 9, True, "pupil"), (0.0, 3, False, "other")]


async def test_a_call_without_a_role_is_not_trained_on():
    arena = make_arena(Asked())
    response = await arena.call_model([])
    await arena.call_model([], temperature=0.0, max_tokens=500, model="judge")
    assert arena.client.options == [(1.0, None, False, None), (0.0, 500, False, "judge")]
    assert response.completion_token_ids is None
    assert response.policy == ""


async def test_calls_without_a_role_may_go_to_another_model():
    arena = make_arena(Asked())
    arena.model_without_role = "base"
    for model in (None, "judge"):
        await arena.call_model([], model=model)
    await arena.call_model([], "solver")
    assert [options[3] for options in arena.client.options] == ["base", "judge", "default"]


async def test_scoring_is_a_call_like_any_other():
    class Scores(MockInferenceClient):
        async def score(self, messages, completions, *, model=None):
            await self.complete(messages)
            return [float(len(model))] * len(completions)

    arena = make_arena(Scores(["yes"]), max_calls=2)
    arena.model_without_role = "base"
    scores = await asyncio.gather(*(arena.score([], ["a", "b"], model=name) for name in (None, "x", "xy")))
    assert scores == [[4.0, 4.0], [1.0, 1.0], [2.0, 2.0]]
    assert arena.client.max_in_flight == 2


async def test_the_error_for_an_unknown_role_or_episode_names_the_known_ones():
    arena = make_arena()
    with pytest.raises(InputError, match=r"no role judge.*there are: proposer, solver"):
        await arena.call_model([], "judge")
    with pytest.raises(InputError, match=r"no episode debate.*parent, child"):
        await arena.run_episode("debate", None)


# Limits


@pytest.mark.parametrize(("count", "children", "concurrency"), [(40, 8, 7), (5, 8, 1), (3, 2, 64)])
async def test_nested_episodes_neither_deadlock_nor_exceed_the_limit(count, children, concurrency):
    client = MockInferenceClient(["yes"])
    arena = make_arena(client, parents(count), parent=Family(children=children))
    batch = await arena.step(concurrency)
    assert client.calls == len(batch.records) == count * (1 + children)
    assert client.max_in_flight == min(concurrency, count * children)


async def test_episodes_in_three_levels_share_one_limit():
    client = MockInferenceClient(["yes"])
    arena = make_arena(client, parents(6), parent=Family(children=3), child=Family("solver", children=4))
    arena.episodes["child"].requests = [EpisodeRequest("leaf", number) for number in range(4)]
    arena.add_episode("leaf", Ask())
    batch = await arena.step(concurrency=2)
    assert (len(batch.records), client.max_in_flight) == (6 * (1 + 3 * (1 + 4)), 2)


async def test_failed_calls_return_their_slots():
    class Dead(MockInferenceClient):
        async def complete(self, *args, **options):
            await super().complete(*args, **options)
            raise ConnectionError("dead")

    client = Dead(["yes"])
    arena = make_arena(client, retries=0)
    results = await arena.generate_rollouts(parents(9), concurrency=2)
    assert [result.rollout.error is None for result in results] == [False] * 9
    arena.client = MockInferenceClient(["yes"])
    results = await arena.generate_rollouts(parents(9))
    assert [result.rollout.error for result in results] == [None] * 9
    assert arena.client.max_in_flight == 2


# Results


async def test_an_artifact_of_a_store_reaches_the_episode_as_its_data():
    arena = make_arena()
    result = (await arena.generate_rollouts([EpisodeRequest("child", Artifact("sums"))]))[0]
    assert result.rollout.artifact == "sums"
    assert result.rollout.steps[0].prompt[0]["content"] == "about sums"


class Clocked(MockInferenceClient):
    """Records the times of its calls."""

    def __init__(self):
        super().__init__(["yes"])
        self.times = []

    async def complete(self, *args, **options):
        self.times.append(time.time())
        return await super().complete(*args, **options)


async def test_an_episode_began_before_its_first_call_and_ended_after_its_last():
    arena = make_arena(Clocked())
    before = time.time()
    result = await arena.run_episode("parent", "sums")
    parent, children = result.rollout, [child.rollout for child in result.children]
    assert before <= parent.started_at <= arena.client.times[0]
    assert all(
        parent.started_at <= child.started_at <= child.ended_at <= parent.ended_at for child in children
    )
    assert arena.client.times[-1] <= parent.ended_at <= time.time()


async def test_started_counts_episodes_of_all_levels_and_no_retries():
    fails = iter([True, True, *[False] * 20])

    class Shaky(Ask):
        async def rollout(self, arena, artifact, state=None):
            if next(fails):
                raise TransientError("not yet")
            return await super().rollout(arena, artifact, state)

    arena, counts = make_arena(requests=parents(3), child=Shaky()), Counter()
    counting = episode_counts.set(counts)
    batch = await arena.step()
    episode_counts.reset(counting)
    assert (counts["started"], batch.meta["episodes"], batch.meta["retried"]) == (9, 9, 2)


async def test_on_result_is_called_for_every_request_but_not_for_children():
    arena = make_arena(requests=parents(3))
    heard = []
    arena.on_result = heard.append
    _, results = await arena.play_step()
    assert len(heard) == 3
    assert all(result in heard for result in results)
