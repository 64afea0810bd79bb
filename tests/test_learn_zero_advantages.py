"""Answers to prompts without a signal, which are left out of an update, and what its means are then over."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrices import first_of
from sparring.core.records import without_zero_advantages
from sparring.core.types import Answer
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.learner import Learner
from sparring.learn.schedules import Schedule
from tiny_models import algorithm_of, constant, make_record, tiny_policy

ADVANTAGES = st.lists(st.sampled_from([0.0, 0.0, 0.0, 1e-12, -1.0, 0.5]), min_size=1, max_size=5)
CONVERSATIONS = st.tuples(ADVANTAGES, st.sampled_from([2, 3]), st.sampled_from([0.5, 1.0]))


def conversation(advantages, drawn=2, temperature=1.0):
    """A record of answers with these advantages, each of ``drawn`` equal ids after one of its own."""
    answers = [
        Answer(
            prompt_token_ids=[100 + number],
            completion_token_ids=[10 + number] * drawn,
            logprobs=[-float(number + 1)] * drawn,
            reward=0.0,
            advantage=advantage,
        )
        for number, advantage in enumerate(advantages)
    ]
    first = make_record(answers[0].prompt_token_ids, answers[0].completion_token_ids, advantages[0])
    return replace(first, logprobs=answers[0].logprobs, temperature=temperature, later=answers[1:])


def learned(records, *, skip, aggregation="token-mean", epochs=1, minibatches=1, rate=1.0):
    """Return the weights after an update of plain gradient descent, and the metrics."""
    policy = tiny_policy()
    algorithm = algorithm_of(Ppo, aggregation=aggregation, correction="none")
    steps = {"epochs": epochs, "minibatches": minibatches}
    learner = Learner(policy, algorithm, constant(grad_clip=1e6, skip_zero_advantages=skip, **steps))
    learner.learning_rate = Schedule(rate, rate, 1)
    learner.optimizer = torch.optim.SGD(policy.adapter_parameters(), lr=rate)
    metrics = learner.update(records)
    return policy.adapter_state(), metrics


def assert_same(state, other):
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


def prompts_of(record):
    """The temperature and all ids before each answer."""
    ids, before = record.input_ids, 0
    for answer in record.answers:
        before += len(answer.prompt_token_ids)
        yield record.temperature, tuple(ids[:before])
        before += len(answer.completion_token_ids)


@given(st.lists(CONVERSATIONS, min_size=1, max_size=6))
def test_no_token_is_lost_and_the_answers_to_prompts_with_an_advantage_remain(batch):
    records = [conversation(*one) for one in batch]
    asked = [
        (place, answer, prompt)
        for place, record in enumerate(records)
        for answer, prompt in zip(record.answers, prompts_of(record), strict=True)
    ]
    with_signal = {prompt for _, answer, prompt in asked if abs(answer.advantage) > 0.1}
    expected = [(place, answer, prompt) for place, answer, prompt in asked if prompt in with_signal]
    kept = without_zero_advantages(records)
    if not expected:
        assert kept is records, "there must be something to update on"
        return
    found = [
        (answer, prompt) for one in kept for answer, prompt in zip(one.answers, prompts_of(one), strict=True)
    ]
    for (answer, prompt), (_, source, of_source) in zip(found, expected, strict=True):
        assert prompt == of_source
        assert answer.completion_token_ids == source.completion_token_ids
        assert (answer.logprobs, answer.advantage) == (source.logprobs, source.advantage)
    assert len(kept) == len({place for place, _, _ in expected})


def test_an_answer_that_earned_the_mean_of_its_group_stays():
    group = [make_record([1, 2], [3 + number], one) for number, one in enumerate([1.0, 0.0, -1.0])]
    equal = [make_record([1, 3], [3 + number], 0.0) for number in range(2)]
    assert without_zero_advantages([*equal, *group]) == group


def test_a_prompt_at_another_temperature_or_after_another_answer_is_another_one():
    told, equal = make_record([1], [2], 1.0), make_record([1], [3], 0.0, temperature=0.5)
    assert without_zero_advantages([told, equal]) == [told]
    later = [conversation([1.0, 0.5], drawn=2), conversation([1.0, 0.0], drawn=3)]
    first, second = without_zero_advantages(later)
    assert (len(first.answers), len(second.answers)) == (2, 1)


@pytest.mark.parametrize("aggregation", first_of(["token-mean", "seq-mean-token-mean"]))
@pytest.mark.parametrize("steps", [(1, 1), (2, 2)])
def test_an_update_is_that_on_the_records_that_remain(aggregation, steps):
    records = [
        make_record([1, 2], [3], 1.0),
        make_record([1, 2], [3, 4, 5], 0.0),
        make_record([1, 7], [5, 6], 0.0),
        make_record([1, 7], [6, 6, 6, 6], 0.0),
        make_record([1, 8], [8], 2.0),
        make_record([1, 8], [9, 9], -1.0),
    ]
    options = {"aggregation": aggregation, "epochs": steps[0], "minibatches": steps[1]}
    state, metrics = learned(records, skip=True, **options)
    expected, _ = learned([*records[:2], *records[4:]], skip=False, **options)
    assert_same(state, expected)
    assert metrics["records"] == 4
    assert metrics["records_too_long"] == 0
    for others in (records, [one for one in records if one.advantage]):
        differing, _ = learned(others, skip=False, **options)
        with pytest.raises(AssertionError):
            assert_same(state, differing)  # the number of answers and tokens would be another


@pytest.mark.parametrize("advantages", [[0.0, 1.0, 0.0, -2.0], [1.0, 0.0, 0.5], [0.0, 0.0, 3.0], [2.0, 0.0]])
def test_an_answer_that_is_left_out_of_a_conversation_stays_in_the_prompt(advantages):
    """Per answer the sum over its tokens is the same, so that only the number of answers differs."""
    record, number = conversation(advantages), sum(1 for one in advantages if one)
    state, metrics = learned([record], skip=True, aggregation="seq-mean-token-sum-norm", rate=0.5)
    same_sum = 0.5 * len(advantages) / number
    expected, _ = learned([record], skip=False, aggregation="seq-mean-token-sum-norm", rate=same_sum)
    assert_same(state, expected)
    assert metrics["records"] == number
    assert metrics["grad_norm"] > 0.01, "otherwise any two updates would be the same"


def test_a_batch_without_any_advantage_changes_nothing_and_does_not_end_the_run():
    before = tiny_policy().adapter_state()
    state, metrics = learned([make_record([1], [2], 0.0), make_record([1], [3, 4], 0.0)], skip=True)
    assert metrics["records"] == 2
    assert_same(state, before)
