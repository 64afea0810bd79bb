"""Steps of an arena and their batches: what batches contain, what is rejected, how a run continues."""

import dataclasses
import json

import pytest

from core_programs import Ask, BatchArena, Family, SeedClient, make_arena, parents, played
from sparring.core import (
    Arena,
    Artifact,
    ArtifactStore,
    EpisodeError,
    EpisodeRequest,
    GRPOCredit,
    InputError,
    MockInferenceClient,
    RAECredit,
    Role,
    SparringError,
    TrainingBatch,
    derive_seed,
)

PROMPT = [{"role": "user", "content": "about 0"}]


async def test_a_record_has_the_fields_of_its_step():
    arena = make_arena(requests=[EpisodeRequest("child", number) for number in range(2)])
    arena.episodes["child"] = Ask(reward=float)
    batch, results = await arena.play_step()
    for record, result in zip(batch.records, results, strict=True):
        rollout, step = result.rollout, result.rollout.steps[0]
        assert (record.role_id, record.rollout_id) == ("solver", rollout.id)
        assert record.prompt_token_ids == step.prompt_token_ids == list(step.prompt[0]["content"].encode())
        assert record.completion_token_ids == step.completion_token_ids == [*step.act.encode(), 0]
        assert record.logprobs == step.completion_logprobs
        assert record.reward == step.reward == rollout.artifact
        assert record.meta == {
            "pid": 0,
            "env_id": "ask solver",
            "finish_reason": "stop",
            **rollout.meta,
        }
        assert record.input_ids == record.prompt_token_ids + record.completion_token_ids
        expected_mask = [0] * len(record.prompt_token_ids) + [1] * len(record.completion_token_ids)
        assert record.action_mask == expected_mask
    assert [record.advantage for record in batch.records] == [-0.5, 0.5]


async def test_children_have_records_and_parents_come_first():
    batch = await make_arena(requests=parents(2)).step()
    names = [record.rollout_id.removeprefix("step-000001-0000") for record in batch.records]
    assert names == ["0", "0.0", "0.1", "1", "1.0", "1.1"]


async def test_untrainable_results_and_their_descendants_have_no_records():
    requests = [EpisodeRequest("parent", 0), EpisodeRequest("parent", 1, is_trainable=False)]
    batch, results = await make_arena(requests=requests).play_step()
    assert [result.is_trainable for result in results] == [True, False]
    assert {record.rollout_id[:17] for record in batch.records} == {"step-000001-00000"}
    assert (batch.meta["episodes"], batch.meta["steps"]) == (6, 3)
    assert len(results[1].all_rollouts()) == 3
    assert results[1].trainable_rollouts() == []


async def test_the_summary_counts_everything_and_has_means_by_role_and_metric():
    class Sometimes(Ask):
        def get_initial_prompt(self, arena, artifact, state):
            if artifact == 0:
                raise EpisodeError("not this one")
            return super().get_initial_prompt(arena, artifact, state)

    arena = make_arena(
        requests=parents(2), parent=Family(children=3), child=Sometimes(reward=float), retries=1
    )
    batch = await arena.step()
    assert batch.meta == {
        "step": 1,
        "policy_version": 0,
        "episodes": 8,
        "failed": 2,
        "last_error": "not this one",
        "retried": 0,
        "steps": 6,
        "broken_prefixes": 0,
        "text_only_steps": 0,
        "reward/proposer": 1.0,
        "reward/solver": 1.5,
        "metric/ask proposer/<lambda>/proposer": 1.0,
        "metric/ask solver/<lambda>/solver": 1.5,
        "num_results": 2,
        "num_records": 6,
    }


@pytest.mark.parametrize("missing", ["prompt_token_ids", "completion_token_ids", "completion_logprobs"])
async def test_a_step_that_lacks_any_of_the_three_token_fields_is_text_only(missing):
    response = await MockInferenceClient(["yes"]).complete(PROMPT)
    assert not response.to_step("solver", PROMPT).text_only
    setattr(response, missing, None)
    assert response.to_step("solver", PROMPT).text_only


@pytest.mark.parametrize(
    ("logprobs", "problem"),
    [
        ([-0.1], "4 drawn tokens but 1 log-probabilities"),
        ([-0.1] * 5, "4 drawn tokens but 5 log-probabilities"),
        ([-0.1, float("nan"), -0.1, -0.1], "not a finite number"),
        ([-0.1, -0.1, -0.1, float("-inf")], "not a finite number"),
    ],
)
async def test_log_probabilities_that_do_not_match_the_tokens_fail_the_episode(logprobs, problem):
    class Wrong(MockInferenceClient):
        async def complete(self, messages, *args, **options):
            response = await super().complete(messages, *args, **options)
            if messages[-1]["content"] == "about 0":
                response.completion_logprobs = logprobs
            return response

    arena = make_arena(Wrong(["yes"]), [EpisodeRequest("child", number) for number in range(2)])
    batch, results = await arena.play_step()
    assert problem in results[0].rollout.error
    assert [record.rollout_id for record in batch.records] == [results[1].rollout.id]


# The sanity check


def changed(**fields):
    return lambda records: [dataclasses.replace(records[0], **fields), *records[1:]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda records: records[1:], "6 records follow from the steps, but the batch has 5"),
        (lambda records: [*records, records[0]], "6 records follow from the steps, but the batch has 7"),
        (lambda records: records[::-1], "differs from the step that was played"),
        (changed(prompt_token_ids=[1, 2]), "^the record of role proposer in rollout .* differs"),
        (changed(logprobs=[float("nan")]), "differs"),
        (changed(advantage=9.0), "differs"),
        (changed(policy_version=9), "differs"),
    ],
)
async def test_the_sanity_check_detects_other_records(change, problem):
    arena = make_arena(requests=parents(2))
    batch, results = await arena.play_step()
    arena.sanity_check_batch(results, batch)
    batch.records = change(batch.records)
    with pytest.raises(SparringError, match=problem):
        arena.sanity_check_batch(results, batch)


# Steps and runs


class TopicArena(Arena):
    """Plays its remaining topics, two per step."""

    def __init__(self, client, *, seed=0, topics=5, credit_assigner=None):
        super().__init__(client, credit_assigner, seed=seed)
        self.add_role(Role("solver"))
        self.add_episode("child", Ask(reward=lambda artifact: float(len(artifact))))
        self.add_store("topics")
        self.topics = topics
        self.events = []

    async def startup(self):
        self.events.append("startup")
        for number in range(self.topics):
            self.stores["topics"].add(Artifact(f"topic {number}", id=str(number)))

    async def shutdown(self):
        self.events.append("shutdown")

    def get_batch(self):
        return [EpisodeRequest("child", topic) for topic in self.stores["topics"].sample(2)]


async def test_a_run_yields_one_batch_per_step():
    arena = TopicArena(SeedClient())
    await arena.startup()
    batches = [batch async for batch in arena.run(num_steps=3, concurrency=2)]
    await arena.shutdown()
    assert [batch.meta["step"] for batch in batches] == [1, 2, 3]
    assert all(isinstance(batch, TrainingBatch) and len(batch.records) == 2 for batch in batches)
    assert arena.events == ["startup", "shutdown"]


async def test_rewards_may_be_adjusted_by_what_a_whole_step_shows():
    class Shared(BatchArena):
        def adjust_rewards(self, results):
            for result in results:
                result.rollout.set_reward("solver", 1.0 / len(results))

    arena = Shared(SeedClient(), [EpisodeRequest("child", number) for number in range(4)])
    arena.add_role(Role("solver"))
    arena.add_episode("child", Ask())
    assert [record.reward for record in (await arena.step()).records] == [0.25] * 4


async def test_a_run_without_num_steps_ends_at_an_empty_batch():
    class RunsOut(BatchArena):
        def get_batch(self):
            return [self.requests.pop()] if self.requests else []

    arena = RunsOut(SeedClient(), [EpisodeRequest("child", number) for number in range(3)])
    arena.add_role(Role("solver"))
    arena.add_episode("child", Ask())
    assert len([batch async for batch in arena.run()]) == 3


async def test_a_plain_arena_plays_nothing_and_measures_nothing():
    arena = Arena(MockInferenceClient(["yes"]))
    assert arena.get_batch() == []
    assert [batch async for batch in arena.run()] == []
    assert await arena.evaluate() == {}
    assert (await arena.step()).records == []
    await arena.startup()
    await arena.shutdown()


async def test_credit_is_grpo_unless_another_is_given():
    assert isinstance(Arena(MockInferenceClient(["yes"])).credit_assigner, GRPOCredit)
    arena = TopicArena(SeedClient(), credit_assigner=RAECredit())
    await arena.startup()
    batch = await arena.step()
    assert [record.advantage for record in batch.records] == [7.0, 7.0]


@pytest.mark.parametrize("seed", [0, 1])
async def test_an_arena_restored_from_a_checkpoint_continues_as_if_uninterrupted(seed):
    whole = TopicArena(SeedClient(), seed=seed, credit_assigner=RAECredit())
    await whole.startup()
    for _ in range(2):
        await whole.step()
    saved = json.loads(json.dumps(whole.state_dict()))
    resumed = TopicArena(SeedClient(order=9), seed=seed, credit_assigner=RAECredit())
    await resumed.startup()
    resumed.load_state_dict(saved)
    for _ in range(2):
        expected, batch = await whole.step(), await resumed.step()
        assert [dataclasses.asdict(one) for one in batch.records] == [
            dataclasses.asdict(one) for one in expected.records
        ]


def test_a_checkpoint_with_an_unknown_store_is_rejected():
    arena = TopicArena(SeedClient())
    state = arena.state_dict()
    state["stores"]["questions"] = ArtifactStore().state_dict()
    with pytest.raises(InputError, match=r"no store questions.*add_store"):
        arena.load_state_dict(state)


def test_stores_of_an_arena_have_their_own_seeds():
    arena, store = Arena(MockInferenceClient(["yes"]), seed=3), ArtifactStore(max_size=7)
    assert arena.add_store("given", store) is store
    first, second = arena.add_store("first"), arena.add_store("second")
    for one in (first, second):
        for number in range(20):
            one.add(Artifact(number, id=str(number)))
    same = ArtifactStore(seed=derive_seed(3, "first"))
    for number in range(20):
        same.add(Artifact(number, id=str(number)))
    drawn = [one.data for one in first.sample(10)]
    assert drawn == [one.data for one in same.sample(10)]
    assert drawn != [one.data for one in second.sample(10)]
    assert arena.stores == {"given": store, "first": first, "second": second}


def test_results_are_trees():
    leaf = played("ask", {"S": 1.0})
    tree = played("ask", {"S": 2.0}, children=[played("ask", {"S": 3.0}, children=[leaf])])
    assert [one.rewards["S"] for one in tree.all_rollouts()] == [2.0, 3.0, 1.0]
    assert tree.rewards == {"S": 2.0}


def test_a_role_builds_messages():
    role = Role("solver", "Be brief.")
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked = {"role": "user", "content": "c"}
    assert role.build_messages("c") == [{"role": "system", "content": "Be brief."}, asked]
    assert role.build_messages("c", history)[1:] == [*history, asked]
    assert Role("solver").build_messages("c") == [asked]


def test_ratings_use_the_rewards_of_roles_that_played_each_other():
    meeting = played("debate", {"Aff": 1.0, "Neg": -1.0}, children=[played("ask", {"S": 1.0})])
    assert make_arena().outcomes(meeting) == [{"Aff": 1.0, "Neg": -1.0}]
