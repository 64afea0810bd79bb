"""Prefix-tree training, compared with training one sample at a time with plain transformers and peft."""

import functools
import math
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from sparring.core import TrainingRecord
from sparring.learn import logprobs as logprobs_module
from sparring.learn import tree_attention
from sparring.learn.algorithms import Reinforce
from sparring.learn.policy import ALL_LINEAR
from tiny_models import ARCHITECTURES, algorithm_of, make_record, tiny_model, tiny_policy

# Of the plain peft model; PolicyModel must be silent (test_learn_policy).
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

RANK = 4
MAX_GENERATION_LEN = 5
MAX_IMPORTANCE_WEIGHT = 1.5
VERSION = 3
Records = list[TrainingRecord]


@dataclass(frozen=True)
class Case:
    """The settings of a training step."""

    regulariser: str = "none"
    regulariser_weight: float = 0.0
    kl_weight: float = 0.0
    entropy_weight: float = 0.0
    max_batch_tokens: int = 2048
    run_overhead: int = 6000
    rows_at_once: int = 256
    memory: float = math.inf


@functools.cache
def policy_of(architecture: str) -> Any:
    return tiny_policy(architecture, rank=RANK)


@functools.cache
def plain_model(architecture: str, attention: str = "eager") -> Any:
    """Return the base and adapter of :func:`policy_of`, loaded by transformers and peft alone."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model(architecture), attn_implementation=attention)
    model = get_peft_model(
        base,
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM"),
    )
    set_peft_model_state_dict(model, policy_of(architecture).adapter_state())
    return model


def plain_logprobs(model: Any, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
    return logprobs_TV.gather(1, torch.tensor(completion)[:, None])[:, 0]


def plain_entropy(model: Any, record: TrainingRecord) -> torch.Tensor:
    """Return the sum of the entropies over the vocabulary at the record's drawn tokens."""
    prompt, completion = record.prompt_token_ids, record.completion_token_ids
    logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.distributions.Categorical(logits=logits_TV / record.temperature).entropy().sum()


def plain_losses(model: Any, record: TrainingRecord, num_records: int, case: Case) -> list[torch.Tensor]:
    """Return the terms of one record's share of the loss, by the formulas in the documentation."""
    prompt, completion = record.prompt_token_ids, record.completion_token_ids
    logprobs_t = plain_logprobs(model, prompt, completion, record.temperature)
    ratio_t = torch.exp(logprobs_t.detach() - torch.tensor(record.logprobs))
    weights_t = torch.minimum(ratio_t, torch.tensor(MAX_IMPORTANCE_WEIGHT))
    losses = [-record.advantage * (weights_t * logprobs_t).sum()]
    if case.kl_weight:
        with torch.no_grad(), model.disable_adapter():
            base_t = plain_logprobs(model, prompt, completion, record.temperature)
        ratio_t = torch.exp(torch.minimum(base_t - logprobs_t, torch.tensor(2.6)))
        losses.append(case.kl_weight * (weights_t * (ratio_t - 1 - torch.log(ratio_t))).sum())
    if case.entropy_weight:
        losses.append(-case.entropy_weight * plain_entropy(model, record))
    if case.regulariser != "none" and record.alternatives:
        answer_A = [plain_logprobs(model, prompt, a, record.temperature).sum() for a in record.alternatives]
        reference_A = torch.full((len(answer_A),), 1 / len(answer_A))
        if case.regulariser == "base":
            with torch.no_grad(), model.disable_adapter():
                base_A = [
                    plain_logprobs(model, prompt, a, record.temperature).sum() for a in record.alternatives
                ]
            reference_A = torch.softmax(torch.stack(base_A), dim=0)
        losses.append(-case.regulariser_weight * (reference_A * torch.stack(answer_A)).sum())
    return [loss / (num_records * MAX_GENERATION_LEN) for loss in losses]


@dataclass
class PlainResult:
    """Sums over records, and sums of magnitudes, which scale the rounding where terms cancel each other."""

    loss: float
    loss_magnitude: float
    gradients: dict[str, torch.Tensor]
    gradient_magnitudes: dict[str, torch.Tensor]


def train_plainly(model: Any, records: Records, case: Case) -> PlainResult:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    zeros = {name: torch.zeros_like(p) for name, p in parameters.items()}
    result = PlainResult(0.0, 0.0, dict(zeros), dict(zeros))
    for record in records:
        for loss in plain_losses(model, record, len(records), case):
            result.loss += float(loss.detach())
            result.loss_magnitude += abs(float(loss.detach()))
            # Several terms of a record share its forward pass.
            gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                result.gradients[name] = result.gradients[name] + gradient
                result.gradient_magnitudes[name] = result.gradient_magnitudes[name] + gradient.abs()
    return result


def train_as_tree(
    policy: Any, records: Records, case: Case
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    algorithm = algorithm_of(
        Reinforce,
        regulariser=case.regulariser,
        kl_weight=case.kl_weight,
        max_importance_weight=MAX_IMPORTANCE_WEIGHT,
        entropy_weight=case.entropy_weight,
    )
    algorithm.initialize(
        policy,
        MAX_GENERATION_LEN,
        max_batch_tokens=case.max_batch_tokens,
    )
    algorithm.limits.memory.limit = case.memory
    policy.model.zero_grad(set_to_none=True)
    with (
        patch.object(tree_attention, "RUN_OVERHEAD_PAIRS", case.run_overhead),
        patch.object(logprobs_module, "ROWS_AT_ONCE", case.rows_at_once),
    ):
        metrics = algorithm.update(algorithm.prepare_batch(records, VERSION), case.regulariser_weight)
    return metrics, {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}


def assert_same_training(architecture: str, records: Records, case: Case, attention: str = "eager") -> None:
    policy = policy_of(architecture)
    metrics, gradients = train_as_tree(policy, records, case)
    plain = train_plainly(plain_model(architecture, attention), records, case)
    assert abs(metrics["loss"] - plain.loss) <= 1e-4 * plain.loss_magnitude + 1e-6
    assert set(gradients) == set(plain.gradients)
    assert len(gradients) == len(policy.adapter_parameters()) == 2 * 2 * len(ALL_LINEAR)
    # A gradient that is zero by symmetry still contains the rounding of its inputs.
    largest = max(float(magnitude.max()) for magnitude in plain.gradient_magnitudes.values())
    for name, gradient in gradients.items():
        magnitude = plain.gradient_magnitudes[name]
        allowed = 1e-4 * torch.maximum(magnitude, magnitude.max() / 10) + 3e-6 * largest
        assert ((gradient - plain.gradients[name]).abs() <= allowed).all(), name


token = st.integers(0, 3)
tokens = st.lists(token, min_size=1, max_size=4)


@st.composite
def batches(draw: st.DrawFn) -> Records:
    """Ragged batches whose prompts may be equal, share prefixes, be prefixes of others, or share nothing."""
    prompts = draw(st.lists(st.lists(token, min_size=1, max_size=7), min_size=1, max_size=4))
    if draw(st.booleans()):
        prompts = [[10 + index, *prompt] for index, prompt in enumerate(prompts)]
    answers = [draw(st.lists(tokens, max_size=3, unique_by=tuple)) for _ in prompts]
    records = []
    for _ in range(draw(st.integers(1, 4))):
        index = draw(st.integers(0, len(prompts) - 1))
        prompt = prompts[index]
        completion = draw(tokens)
        records.append(
            make_record(
                prompt,
                completion,
                draw(st.sampled_from([-1.0, 0.5, 2.0])),
                logprobs=[draw(st.sampled_from([-6.0, -3.0, -0.5])) for _ in completion],
                alternatives=answers[prompts.index(prompt)],
                policy_version=draw(st.sampled_from([VERSION - 1, VERSION])),
                temperature=draw(st.sampled_from([1.0, 0.7])),
            )
        )
        if draw(st.booleans()):
            records.append(records[-1])
    return records


cases = st.builds(
    Case,
    regulariser=st.sampled_from(["none", "uniform", "base"]),
    regulariser_weight=st.sampled_from([0.1, 1.0]),
    kl_weight=st.sampled_from([0.0, 0.3]),
    entropy_weight=st.sampled_from([0.0, 0.4]),
    max_batch_tokens=st.sampled_from([1, 6, 12, 2048]),
    run_overhead=st.sampled_from([0, 6000]),
    rows_at_once=st.sampled_from([2, 256]),
    memory=st.sampled_from([0.0, 60_000.0, math.inf]),  # the second keeps a few tokens
).filter(lambda case: case.regulariser != "base" or not case.kl_weight)  # one of the two, by the settings


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=10, deadline=None)
@given(records=batches(), case=cases)
def test_tree_training_equals_training_one_sample_at_a_time(architecture, records, case):
    assert_same_training(architecture, records, case)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_training_on_a_self_play_batch_equals_training_on_separate_samples(architecture, attention):
    """Long shared prompts, a few actions that occur often, and a tree cut into subtrees."""
    rules = [token % 200 for token in range(60)]
    answers = [[3, 4, 5], [3, 6, 5], [7, 5]]
    records = [
        make_record(
            rules + [seat, 100 + seat] * (1 + game % 3),
            answers[game % 3],
            advantage=(-1.0) ** game,
            alternatives=answers,
            policy_version=VERSION,
        )
        for game in range(8)
        for seat in range(2)
    ]
    case = Case("uniform", regulariser_weight=0.2, max_batch_tokens=70)
    assert_same_training(architecture, records, case, attention)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_adapter_whose_b_matrices_are_still_zero_is_trained(architecture):
    policy = tiny_policy(architecture, perturbed=False)
    _, gradients = train_as_tree(policy, [make_record([1, 2], [3, 4])], Case())
    moved = {name for name, gradient in gradients.items() if gradient.abs().max() > 0}
    assert moved == {name for name in gradients if ".lora_B." in name}


def test_the_base_model_gets_no_gradients():
    policy = policy_of("llama")
    train_as_tree(policy, [make_record([1, 2], [3, 4])], Case("uniform", 0.1, kl_weight=0.1))
    with_gradient = [p for p in policy.model.parameters() if p.grad is not None]
    assert {id(p) for p in with_gradient} == {id(p) for p in policy.adapter_parameters()}


def test_metrics_include_loss_kl_and_the_mass_and_entropy_of_legal_answers():
    policy, model = policy_of("llama"), plain_model("llama")
    records = [make_record([1, 2], [3], alternatives=[[3], [4, 5]])] * 3 + [make_record([9], [1, 2])]
    metrics, _ = train_as_tree(policy, records, Case("uniform", 0.5, kl_weight=0.2))
    with torch.no_grad():
        answer_A = [float(plain_logprobs(model, [1, 2], a, 1.0).sum()) for a in ([3], [4, 5])]
        other_t = plain_logprobs(model, [9], [1, 2], 1.0)
        with model.disable_adapter():
            base_t = plain_logprobs(model, [9], [1, 2], 1.0)
            base_3 = float(plain_logprobs(model, [1, 2], [3], 1.0))
    mass = [math.exp(logprob) for logprob in answer_A]
    share = [p / sum(mass) for p in mass]
    assert metrics["legal_mass"] == pytest.approx(sum(mass), rel=1e-4)
    assert metrics["legal_entropy"] == pytest.approx(-sum(p * math.log(p) for p in share), rel=1e-4)
    log_ratios = [base_3 - answer_A[0]] * 3 + (base_t - other_t).tolist()
    weights = [math.exp(logprob) for logprob in [answer_A[0]] * 3 + other_t.tolist()]
    kl = sum(w * (math.exp(r) - 1 - r) for w, r in zip(weights, log_ratios, strict=True)) / len(weights)
    assert metrics["kl_to_base"] == pytest.approx(kl, rel=1e-4)
    assert metrics["separate_tokens"] == 3 * 3 + 3
    assert metrics["packed_tokens"] == 3 + 2  # 1 2 4, and 9 1


def test_entropy_and_accuracy_are_reported_as_means_over_drawn_tokens(monkeypatch):
    """Each alone, and both."""
    likeliest = int(plain_model("llama")(torch.tensor([[9]])).logits[0, -1].argmax())
    records = [make_record([1, 2], [3, 4], alternatives=[[5]]), make_record([9], [likeliest])]
    with torch.no_grad():
        total = sum(float(plain_entropy(plain_model("llama"), record)) for record in records)
    gradients = []
    for counts_hits in (False, True):
        monkeypatch.setattr(Reinforce, "counts_hits", counts_hits)
        metrics, own = train_as_tree(policy_of("llama"), records, Case("uniform", entropy_weight=0.1))
        gradients.append(own)
        assert metrics["entropy"] == pytest.approx(total / 3, rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(1 / 3)
    assert all(torch.equal(one, gradients[1][name]) for name, one in gradients[0].items())


def test_a_reference_over_very_unlikely_answers_is_a_distribution():
    """Answers with a probability of e-1000 must not make the reference 0/0."""
    unlikely = [[token, 9] * 150 for token in (5, 6)]
    records = [make_record([1], [2], alternatives=unlikely)]
    metrics, gradients = train_as_tree(policy_of("llama"), records, Case("base", 0.1))
    assert math.isfinite(metrics["loss"])
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(("recompute", "times"), [(True, 2), (False, 1)])
def test_layers_are_recomputed_for_the_gradient_if_memory_is_short(recompute, times):
    policy, passes, algorithm = policy_of("llama"), [], Reinforce()
    algorithm.initialize(policy, MAX_GENERATION_LEN)
    algorithm.limits.memory.limit = 0.0 if recompute else math.inf
    layer = policy.model.get_base_model().model.layers[0].self_attn.q_proj
    handle = layer.register_forward_hook(lambda *_: passes.append(1))
    algorithm.update(algorithm.prepare_batch([make_record([1, 2], [3, 4])]))
    handle.remove()
    assert len(passes) == times
