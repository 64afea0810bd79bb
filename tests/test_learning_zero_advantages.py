"""Answers without an advantage that are left out of an update, and what its means are then over."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfplay.core.types import Answer
from selfplay.core.zero_advantages import without_zero_advantages
from selfplay.learning.algorithms import Ppo
from selfplay.learning.learner import Learner, Schedule
from tiny_models import make_record, tiny_policy

ADVANTAGES = st.lists(st.sampled_from([0.0, 1e-12, -1.0, 0.5]), min_size=1, max_size=5)


def conversation(advantages, drawn=2):
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
    return replace(first, logprobs=answers[0].logprobs, later=answers[1:])


def learned(records, *, skip, aggregation="token-mean", epochs=1, minibatches=1, rate=1.0):
    """Return the weights after an update of plain gradient descent, and the metrics."""
    policy = tiny_policy()
    algorithm = Ppo(aggregation=aggregation, correction="none")
    algorithm.initialize(policy, 4)
    schedule = Schedule(rate, rate, 1)
    learner = Learner(
        policy,
        algorithm,
        learning_rate=schedule,
        regulariser_weight=schedule,
        grad_clip=1e6,
        epochs=epochs,
        minibatches=minibatches,
        skip_zero_advantages=skip,
        max_mismatch=100.0,
    )
    learner.optimizer = torch.optim.SGD(policy.adapter_parameters(), lr=rate)
    metrics = learner.update(records)
    return policy.adapter_state(), metrics


def assert_same(state, other):
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


def with_signal(record):
    return [one for one in record.answers if abs(one.advantage) > 0.1]


@given(st.lists(ADVANTAGES, min_size=1, max_size=6))
def test_no_token_is_lost_and_only_answers_with_an_advantage_remain(batch):
    records = [conversation(advantages) for advantages in batch]
    kept, sources = without_zero_advantages(records), [one for one in records if with_signal(one)]
    if not sources:
        assert kept is records, "there must be something to update on"
        return
    for record, source in zip(kept, sources, strict=True):
        assert record.input_ids == source.input_ids[: len(record.input_ids)]
        for one, other in zip(record.answers, with_signal(source), strict=True):
            assert one.completion_token_ids == other.completion_token_ids
            assert (one.logprobs, one.advantage) == (other.logprobs, other.advantage)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("steps", [(1, 1), (2, 2)])
def test_an_update_is_that_on_the_records_that_remain(aggregation, steps):
    records = [
        make_record([1, 2], [3], 1.0),
        make_record([1, 2], [3, 4, 5], 0.0),
        make_record([1, 7], [5, 6], -1.0),
        make_record([1, 7], [6, 6, 6, 6], 0.0),
        make_record([1, 7], [8], 2.0),
    ]
    options = {"aggregation": aggregation, "epochs": steps[0], "minibatches": steps[1]}
    state, metrics = learned(records, skip=True, **options)
    expected, _ = learned([one for one in records if one.advantage], skip=False, **options)
    assert_same(state, expected)
    assert metrics["records"] == 3
    assert metrics["records_too_long"] == 0
    everything, _ = learned(records, skip=False, **options)
    with pytest.raises(AssertionError):
        assert_same(state, everything)  # the zeros would have made the means smaller


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
