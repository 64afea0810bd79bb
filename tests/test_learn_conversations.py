"""The answers of a conversation are one record, and train exactly as apart."""

import random

import pytest
import torch

from engine_requests import make_engine
from sparring.core import Arena, EpisodeRequest, MultiTurnEpisode, Role, Rubric, TrainingBatch
from sparring.core.records import check_batch, joined
from sparring.learn.algorithms.reinforce import Reinforce
from sparring.learn.batch import pack
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import algorithm_of, make_record, perturb_adapter, roomy_model, tiny_policy

TURNS = 40


class Talk(MultiTurnEpisode):
    """One role that answers again and again."""

    episode_type = "talk"
    rubric = Rubric([lambda rollout, arena: {"one": 1.0}])

    def get_initial_prompt(self, arena, artifact, state):
        return "Begin."

    def get_initial_actor(self, artifact, state):
        return "one"

    async def env_response(self, state, arena, artifact):
        return f"Turn {state.turn}."


def turns_of(rng: random.Random, rollout: str, turns: int, first: list[int]) -> list:
    """Return a record for each turn of a conversation in which every prompt continues the last one."""
    records, prompt = [], first
    for turn in range(turns):
        drawn = [rng.randrange(200) for _ in range(rng.randint(1, 4))]
        record = make_record(
            prompt,
            drawn,
            rng.uniform(-1, 1),
            logprobs=[-rng.random() for _ in drawn],
            policy_version=turn % 2,
            alternatives=[[1, 2], [3]] if rng.random() < 0.3 else None,
        )
        record.rollout_id = rollout
        records.append(record)
        prompt = [*prompt, *drawn, *(rng.randrange(200) for _ in range(rng.randint(1, 3)))]
    return records


def some_records(seed: int) -> list:
    rng = random.Random(seed)
    talks = [turns_of(rng, str(n), rng.randint(1, 5), [5, 6, rng.randrange(3)]) for n in range(4)]
    return [record for talk in talks for record in talk]


def test_turns_that_continue_each_other_are_one_record_in_any_order():
    records = some_records(0)
    shuffled = random.Random(1).sample(records, len(records))
    whole = joined(records)
    assert [one.rollout_id for one in whole] == ["0", "1", "2", "3"]
    assert sum(len(one.answers) for one in whole) == len(records)
    for one in whole:
        turns = [record for record in records if record.rollout_id == one.rollout_id]
        assert one.input_ids == turns[-1].input_ids
        assert [answer.completion_token_ids for answer in one.answers] == [
            turn.completion_token_ids for turn in turns
        ]
        drawn = [token for token, mine in zip(one.input_ids, one.action_mask, strict=True) if mine]
        assert drawn == [token for turn in turns for token in turn.completion_token_ids]
    again = sorted(joined(shuffled), key=lambda one: one.rollout_id)
    assert again == whole


def test_turns_that_do_not_continue_each_other_stay_apart():
    first, second, *_ = turns_of(random.Random(0), "a", 3, [5])
    forgets = make_record([5, *second.prompt_token_ids[2:]], [9])
    forgets.rollout_id = "a"
    other = make_record(second.prompt_token_ids, second.completion_token_ids)
    other.rollout_id = "b"
    warmer = make_record(second.prompt_token_ids, second.completion_token_ids, temperature=0.5)
    warmer.rollout_id = "a"
    assert joined([first, forgets, other, warmer]) == [first, forgets, other, warmer]


def test_two_answers_to_one_prompt_are_two_conversations_with_their_own_continuations():
    records = [
        make_record([5], [1]),
        make_record([5], [2]),
        make_record([5, 2, 7], [3]),
        make_record([5, 1, 7], [4]),
    ]
    assert [one.input_ids for one in joined(records)] == [[5, 1, 7, 4], [5, 2, 7, 3]]


@pytest.mark.parametrize("limit", [None, 9])
@pytest.mark.parametrize("seed", range(4))
def test_conversations_train_exactly_as_their_turns_apart(seed, limit):
    policy = tiny_policy("qwen3")
    perturb_adapter(policy)
    records = some_records(seed)
    gradients, metrics = [], []
    for batch in (records, joined(records)):
        algorithm = algorithm_of(Reinforce, kl_weight=0.1, regulariser="uniform")
        algorithm.initialize(policy, 8, limit, 64, "default")
        policy.model.zero_grad(set_to_none=True)
        metrics.append(algorithm.update(algorithm.prepare_batch(batch, 1), 0.3))
        gradients.append(torch.cat([p.grad.flatten() for p in policy.adapter_parameters("default")]))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    apart, together = metrics
    assert together.pop("separate_tokens") <= apart.pop("separate_tokens")
    assert together == pytest.approx(apart, rel=1e-6)


async def play_talk(history: str) -> tuple[list, TrainingBatch]:
    policy = PolicyModel(str(roomy_model()), LoraSettings(4, 8.0), dtype=torch.float32)
    arena = Arena(make_engine(policy, max_tokens=6))
    arena.add_role(Role("one", history=history, temperature=1.3))
    arena.add_episode("talk", Talk(max_turns=TURNS))
    arena.get_batch = lambda: [EpisodeRequest("talk", None, {"seed": 3})]
    batch, results = await arena.play_step()
    check_batch(results, batch)
    return results[0].rollout.steps, batch


async def test_forty_turns_are_one_record_with_forty_answers():
    steps, batch = await play_talk("keep")
    (record,) = batch.records
    assert len(record.answers) == TURNS
    assert record.input_ids == [*steps[-1].prompt_token_ids, *steps[-1].completion_token_ids]
    assert [one.completion_token_ids for one in record.answers] == [one.completion_token_ids for one in steps]
    assert {step.info["finish_reason"] for step in steps} == {"stop", "length"}
    assert batch.meta["broken_prefixes"] == 0
    packed = pack(batch.records, version=None, max_train_len=None, with_answers=False)
    assert packed.packed_tokens == len(record.input_ids) - 1
    assert packed.num_answers == TURNS


async def test_where_a_role_forgets_its_conversation_breaks_and_is_counted(monkeypatch):
    def forgetful(messages, history, beginning):
        return messages[:beginning] + messages[-1:] if len(messages) > 20 else messages

    monkeypatch.setattr("sparring.core.chat.remembered", forgetful)
    steps, batch = await play_talk("drop_reasoning")
    broken = sum(step.info.get("prefix_kept") is False for step in steps)
    assert len(batch.records) == batch.meta["broken_prefixes"] + 1 == broken + 1 == TURNS - 10 + 1
