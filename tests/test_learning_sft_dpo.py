"""SFT and DPO over prefix trees, compared with plain peft and transformers, one sequence at a time."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from selfplay.learning import trie
from selfplay.learning.algorithms.dpo import Dpo, Pair
from selfplay.learning.algorithms.packed_loss import Sample
from selfplay.learning.algorithms.sft import Sft
from selfplay.learning.policy import ALL_LINEAR
from tiny_models import ARCHITECTURES, perturb_adapter, tiny_model, tiny_policy

# Of the plain peft model; PolicyModel must be silent (test_learning_policy).
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

BETA = 0.3
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)
pairs = st.lists(st.builds(Pair, tokens, tokens, tokens), min_size=1, max_size=5)
samples = st.builds(Sample, tokens, tokens)
conversations = st.lists(st.lists(samples, min_size=1, max_size=3), min_size=1, max_size=4)


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


def plain_logprobs(architecture: str, sample: Sample) -> torch.Tensor:
    """The log-probability of each token of the completion."""
    ids = torch.tensor([sample.prompt + sample.completion])
    logits = plain_model(architecture)(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(sample.completion)[:, None])[:, 0]


def plain_dpo(architecture: str, batch: list[Pair]) -> torch.Tensor:
    losses = []
    for pair in batch:
        good, bad = (plain_logprobs(architecture, one).sum() for one in pair.samples())
        difference = good - pair.reference[0] - (bad - pair.reference[1])
        losses.append(-torch.nn.functional.logsigmoid(BETA * difference))
    return torch.stack(losses).mean()


def plain_sft(architecture: str, batch: list[list[Sample]]) -> torch.Tensor:
    return -torch.cat([plain_logprobs(architecture, one) for example in batch for one in example]).mean()


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
@settings(max_examples=20, deadline=None)
@given(batch=conversations, max_batch_tokens=st.sampled_from([1, 4, 2048]))
def test_supervised_gradients_are_those_of_the_mean_over_answer_tokens(architecture, batch, max_batch_tokens):
    metrics = Sft(policy_of(architecture), max_batch_tokens=max_batch_tokens).update(batch)
    expected = plain_sft(architecture, batch)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(architecture, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=20, deadline=None)
@given(
    batch=pairs,
    max_batch_tokens=st.sampled_from([1, 4, 2048]),
    shifts=st.lists(st.floats(-9, 9), min_size=5, max_size=5),
)
def test_preference_gradients_are_exact_however_pairs_are_split(
    architecture, batch, max_batch_tokens, shifts
):
    batch = [
        replace(pair, reference=(-5.0, -5.0 + shift)) for pair, shift in zip(batch, shifts, strict=False)
    ]
    metrics = Dpo(policy_of(architecture), beta=BETA, max_batch_tokens=max_batch_tokens).update(batch)
    expected = plain_dpo(architecture, batch)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_same_gradients(architecture, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_preference_gradients_are_exact_where_the_halves_of_a_pair_are_in_different_plans(
    architecture, monkeypatch
):
    batch = [
        Pair([1, 2, 3], [1, 2, 0, 3], [2, 2, 1], reference=(-5.0, -4.0)),
        Pair([3, 1], [2, 0, 1], [0, 3, 3, 1, 2], reference=(-6.0, -8.0)),
    ]
    monkeypatch.setattr(trie, "HANDY_TOKENS", 1)
    monkeypatch.setattr(trie, "REPEAT_SHARE", 0)
    loss = Dpo(policy_of(architecture), beta=BETA, max_batch_tokens=2048)
    answers = [set(plan.sample_S) for plan in loss.plans([one for pair in batch for one in pair.samples()])]
    assert not any({0, 1} <= one for one in answers), "each pair is divided"
    metrics = loss.update(batch)
    expected = plain_dpo(architecture, batch)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_same_gradients(architecture, expected)


def test_the_reference_is_the_adapter_before_the_first_step():
    policy = tiny_policy()
    loss = Dpo(policy, beta=BETA, max_batch_tokens=8)
    (pair,) = loss.with_reference([Pair([1, 2, 3], [4, 5], [4, 6, 7])])
    for expected, sample in zip(pair.reference, pair.samples(), strict=True):
        assert expected == pytest.approx(float(plain_logprobs("llama", sample).sum()), rel=1e-5)
    unchanged = loss.evaluate([pair])
    assert unchanged["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert unchanged["reward_margin"] == pytest.approx(0, abs=1e-5)
    perturb_adapter(policy, seed=2)
    assert abs(loss.evaluate([pair])["reward_margin"]) > 1e-3


def test_an_evaluation_is_the_update_without_a_gradient():
    policy = policy_of("llama")
    conversation = [[Sample([1, 2], [3, 4]), Sample([1, 2, 3, 4, 5], [6])], [Sample([1, 2], [5])]]
    supervised = Sft(policy)
    assert supervised.evaluate(conversation) == pytest.approx(supervised.update(conversation))
    preferences = Dpo(policy, beta=BETA)
    batch = preferences.with_reference([Pair([1, 2], [3], [4, 5])])
    for one in policy.adapter_parameters():
        one.grad = None
    assert preferences.evaluate(batch)["loss"] == pytest.approx(preferences.update(batch)["loss"])
    loss = preferences.evaluate(batch)
    for one in policy.adapter_parameters():
        one.grad = None
    assert preferences.evaluate(batch) == loss
    assert all(one.grad is None for one in policy.adapter_parameters())


def test_the_accuracy_is_the_share_of_tokens_that_are_the_likeliest():
    prompt = [1, 2, 3]
    likeliest = int(plain_model("llama")(input_ids=torch.tensor([prompt])).logits[0, -1].argmax())
    right, wrong = [Sample(prompt, [likeliest])], [Sample(prompt, [likeliest - 1])]
    loss = Sft(policy_of("llama"))
    assert loss.evaluate([right])["accuracy"] == 1.0
    assert loss.evaluate([right, wrong, wrong, right, wrong])["accuracy"] == pytest.approx(0.4)
