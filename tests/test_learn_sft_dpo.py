"""SFT and DPO over prefix trees, compared with plain peft and transformers, one sequence at a time."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from sparring.core import TrainingRecord
from sparring.learn import trie
from sparring.learn.algorithms.dpo import Dpo, with_reference
from sparring.learn.algorithms.sft import Sft
from sparring.learn.fine_tuning.examples import given_answer
from sparring.learn.policy import ALL_LINEAR
from tiny_models import ARCHITECTURES, perturb_adapter, tiny_model, tiny_policy

# Of the plain peft model; PolicyModel must be silent (test_learn_policy).
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

BETA = 0.3
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)
pairs = st.lists(st.tuples(tokens, tokens, tokens), min_size=1, max_size=5)
answers = st.lists(st.builds(given_answer, tokens, tokens), min_size=1, max_size=8)


def pair(prompt: list[int], good: list[int], bad: list[int]) -> list[TrainingRecord]:
    return [given_answer(prompt, good), given_answer(prompt, bad)]


def referred(records: list[TrainingRecord], *totals: float) -> list[TrainingRecord]:
    """The records of pairs with a reference that gives the answers these log-probabilities."""
    parts = [
        [total / len(one.completion_token_ids)] * len(one.completion_token_ids)
        for one, total in zip(records, totals, strict=True)
    ]
    return with_reference(records, np.concatenate(parts).astype(np.float32))


def updated(algorithm: Sft | Dpo, architecture: str, records: list[TrainingRecord], limit: int = 2048) -> Any:
    """The metrics of an update, whose gradients are in the policy."""
    algorithm.initialize(policy_of(architecture), 1, max_batch_tokens=limit)
    algorithm.begin(records)
    return algorithm.update(algorithm.prepare_batch(records))


@functools.cache
def policy_of(architecture: str) -> Any:
    return tiny_policy(architecture)


@functools.cache
def plain_model(architecture: str) -> Any:
    """The base and adapter of :func:`policy_of`, loaded by transformers and peft alone."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model(architecture), attn_implementation="eager")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    set_peft_model_state_dict(model, policy_of(architecture).adapter_state())
    return model


def plain_logprobs(architecture: str, sample: TrainingRecord) -> torch.Tensor:
    """The log-probability of each token of the completion."""
    ids = torch.tensor([sample.prompt_token_ids + sample.completion_token_ids])
    logits = plain_model(architecture)(input_ids=ids).logits[0, len(sample.prompt_token_ids) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(sample.completion_token_ids)[:, None])[:, 0]


def plain_dpo(architecture: str, records: list[TrainingRecord]) -> torch.Tensor:
    ratios = torch.stack([plain_logprobs(architecture, one).sum() - sum(one.logprobs) for one in records])
    ratios = ratios.view(-1, 2)
    return -torch.nn.functional.logsigmoid(BETA * (ratios[:, 0] - ratios[:, 1])).mean()


def plain_sft(architecture: str, records: list[TrainingRecord]) -> torch.Tensor:
    return -torch.cat([plain_logprobs(architecture, one) for one in records]).mean()


def assert_same_gradients(architecture: str, loss: torch.Tensor) -> None:
    """Compare with the gradients of our adapter, and clear both."""
    model = plain_model(architecture)
    model.zero_grad()
    loss.backward()
    parameters = [one for one in model.parameters() if one.requires_grad]
    theirs = torch.cat([one.grad.flatten() for one in parameters])
    own = policy_of(architecture).adapter_parameters()
    ours = torch.cat([one.grad.flatten() for one in own])
    for one in own:
        one.grad = None
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-7


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=12, deadline=None)
@given(records=answers, max_batch_tokens=st.sampled_from([1, 4, 2048]))
def test_supervised_gradients_are_those_of_the_mean_over_answer_tokens(
    architecture, records, max_batch_tokens
):
    metrics = updated(Sft(), architecture, records, max_batch_tokens)
    expected = plain_sft(architecture, records)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(architecture, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=6, deadline=None)
@given(
    batch=pairs,
    max_batch_tokens=st.sampled_from([1, 4, 2048]),
    shifts=st.lists(st.floats(-9, 9), min_size=5, max_size=5),
)
def test_preference_gradients_are_exact_however_pairs_are_split(
    architecture, batch, max_batch_tokens, shifts
):
    records = [
        record
        for one, shift in zip(batch, shifts, strict=False)
        for record in referred(pair(*one), -5.0, -5.0 + shift)
    ]
    metrics = updated(Dpo(BETA), architecture, records, max_batch_tokens)
    expected = plain_dpo(architecture, records)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_same_gradients(architecture, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_preference_gradients_are_exact_where_the_halves_of_a_pair_are_in_different_plans(
    architecture, monkeypatch
):
    records = [
        *referred(pair([1, 2, 3], [1, 2, 0, 3], [2, 2, 1]), -5.0, -4.0),
        *referred(pair([3, 1], [2, 0, 1], [0, 3, 3, 1, 2]), -6.0, -8.0),
    ]
    monkeypatch.setattr(trie, "HANDY_TOKENS", 1)
    monkeypatch.setattr(trie, "REPEAT_SHARE", 0)
    algorithm = Dpo(BETA)
    metrics = updated(algorithm, architecture, records)
    in_plans = [set(plan.sample_S) for plan in algorithm.prepare_batch(records).plans]
    assert not any({0, 1} <= one for one in in_plans), "each pair is divided"
    expected = plain_dpo(architecture, records)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_same_gradients(architecture, expected)


def test_the_reference_is_the_adapter_before_the_first_step():
    policy = tiny_policy()
    algorithm = Dpo(BETA)
    algorithm.initialize(policy, 1, max_batch_tokens=8)
    records = pair([1, 2, 3], [4, 5], [4, 6, 7])
    records = with_reference(records, algorithm.reference(records))
    for record in records:
        assert record.logprobs == pytest.approx(plain_logprobs("llama", record).tolist(), rel=1e-5)
    unchanged = algorithm.evaluate(records)
    assert unchanged["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert unchanged["reward_margin"] == pytest.approx(0, abs=1e-6)
    perturb_adapter(policy, seed=2)
    assert abs(algorithm.evaluate(records)["reward_margin"]) > 1e-3


def test_an_evaluation_is_the_update_without_a_gradient():
    talks = [given_answer([1, 2], [3, 4]), given_answer([1, 2, 3, 4, 5], [6]), given_answer([1, 2], [5])]
    preferred = referred(pair([1, 2], [3], [4, 5]), -3.0, -4.0)
    for algorithm, records in ((Sft(), talks), (Dpo(BETA), preferred)):
        updated_to = updated(algorithm, "llama", records)
        for one in policy_of("llama").adapter_parameters():
            one.grad = None
        found = algorithm.evaluate(records)
        assert found == pytest.approx({name: updated_to[name] for name in found})
        assert all(one.grad is None for one in policy_of("llama").adapter_parameters())


def test_the_accuracy_is_the_share_of_tokens_that_are_the_likeliest():
    prompt = [1, 2, 3]
    likeliest = int(plain_model("llama")(input_ids=torch.tensor([prompt])).logits[0, -1].argmax())
    right, wrong = given_answer(prompt, [likeliest]), given_answer(prompt, [likeliest - 1])
    assert updated(Sft(), "llama", [right])["accuracy"] == 1.0
    assert updated(Sft(), "llama", [right, wrong, wrong, right, wrong])["accuracy"] == pytest.approx(0.4)
