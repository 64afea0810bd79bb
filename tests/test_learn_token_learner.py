"""Losses by name over target tokens, and steps one by one, against plain torch, transformers and peft."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from matrices import first_of
from sparring.core import InputError, SparringError
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.learn.token_learner import AdamStep, TokenLearner, TokenSample
from sparring.learn.token_losses import LOSSES, RequestedLoss
from tiny_models import perturb_adapter, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

RANK, LAYERS = 3, ["q_proj", "v_proj"]
STEP = AdamStep(learning_rate=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, clip=0.5)
SETTINGS = {"ppo": {"clip_low_threshold": 0.9}, "dro": {"beta": 0.3}}


@pytest.fixture
def policy():
    """A model with two policies, of which the second has a shape of its own."""
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(1))
    policy.add_policy("other", LoraSettings(RANK, 32, LAYERS), seed=5)
    perturb_adapter(policy, "other")
    return policy


def plain_model(policy):
    """The base with the adapter ``other``, loaded by transformers and peft alone."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    config = LoraConfig(r=RANK, lora_alpha=32, target_modules=LAYERS, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    set_peft_model_state_dict(model, policy.adapter_state("other"))
    return model


def samples_of(name, seed, *, extra=()):
    """Samples that share prefixes, whose targets are mostly what follows and sometimes anything."""
    generator = np.random.default_rng(seed)
    shared = generator.integers(0, 250, 12).tolist()
    samples = []
    for length in (5, 9, 9):
        tokens = shared + generator.integers(0, 250, length).tolist()
        targets = np.array([*tokens[1:], 7])
        targets[:4] = 0
        inputs = {
            key: generator.normal(-3 if key == "logprobs" else 0, 0.5, len(tokens)).astype(np.float32)
            for key in LOSSES[name].needs
        }
        for key in extra:
            inputs[key] = (generator.random(len(tokens)) > 0.5).astype(np.float32)
        samples.append(TokenSample(tokens, targets, inputs))
    return [*samples, samples[0]]


def plain_loss(model, name, settings, sample):
    """The loss of one sample as its formula says, and its log-probabilities."""
    logits = model(torch.tensor([sample.tokens])).logits[0]
    new = logits.log_softmax(-1)[range(len(sample.tokens)), torch.from_numpy(sample.targets_N)]
    given = {key: torch.from_numpy(value) for key, value in sample.inputs.items()}
    if name == "cross_entropy":
        return -(given["weights"] * new).sum(), new
    old, advantages = given["logprobs"], given["advantages"]
    ratio = (new - old).exp()
    low, high = settings.get("clip_low_threshold", 0.8), settings.get("clip_high_threshold", 1.2)
    if name == "gspo":
        mask = given.get("sequence_ratio_mask", torch.ones_like(new))
        ratio = (((new - old) * mask).sum() / mask.sum()).detach().exp() * (new - new.detach()).exp()
        low, high = 1 - 3e-4, 1 + 4e-4
    surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    terms = {
        "importance_sampling": ratio * advantages,
        "ppo": surrogate,
        "gspo": surrogate,
        "cispo": ratio.clamp(low, high).detach() * advantages * new,
        "dro": advantages * new - settings.get("beta", 0.05) / 2 * (new - old) ** 2,
    }
    return -terms[name].sum(), new


def finished(work):
    """Run all passes, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("name", first_of(["ppo", *sorted(LOSSES.keys() - {"ppo"})]))
def test_ten_steps_of_a_loss_are_those_of_its_formula(name, policy):
    learner, plain = TokenLearner(policy, "other"), plain_model(policy)
    weights = [one for one in plain.parameters() if one.requires_grad]
    adam = torch.optim.AdamW(weights, STEP.learning_rate, STEP.betas, STEP.eps, STEP.weight_decay)
    settings = SETTINGS.get(name, {})
    loss = RequestedLoss.of(name, settings)
    for step in range(10):
        adam.zero_grad()
        requests = [samples_of(name, 2 * step + half) for half in range(2)]
        for samples in requests:
            found, logprobs = finished(learner.run(samples, loss, backward=True))
            expected = [plain_loss(plain, name, settings, one) for one in samples]
            total = sum(one for one, _ in expected)
            total.backward()
            assert found == pytest.approx(float(total.detach()), abs=1e-4, rel=1e-4)
            for own, (_, new) in zip(logprobs, expected, strict=True):
                np.testing.assert_allclose(own, new.detach(), atol=1e-4)
        own, other = (
            torch.cat([one.grad.flatten() for one in parameters])
            for parameters in (policy.adapter_parameters("other"), weights)
        )
        assert torch.linalg.norm(own - other) <= 1e-4 * torch.linalg.norm(other)
        norm = torch.nn.utils.clip_grad_norm_(weights, STEP.clip)
        adam.step()
        assert learner.step(STEP) == pytest.approx(float(norm), rel=1e-3)
    for own, other in zip(policy.adapter_parameters("other"), weights, strict=True):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-3)


def test_thresholds_and_masks_may_differ_by_token(policy):
    learner, plain = TokenLearner(policy, "other"), plain_model(policy)
    samples = samples_of("gspo", 1, extra=["sequence_ratio_mask"])
    found, _ = finished(learner.run(samples, RequestedLoss.of("gspo", {}), backward=False))
    expected = sum(plain_loss(plain, "gspo", {}, one)[0] for one in samples)
    assert found == pytest.approx(float(expected.detach()), abs=1e-4)
    wide = [
        TokenSample(
            one.tokens,
            one.targets_N,
            {**one.inputs, "clip_low_threshold": np.zeros(len(one.tokens), np.float32)},
        )
        for one in samples_of("ppo", 1)
    ]
    narrow, unclipped = (
        finished(learner.run(one, RequestedLoss.of("ppo", {"clip_high_threshold": 1e6}), backward=False))[0]
        for one in (samples_of("ppo", 1), wide)
    )
    assert narrow != pytest.approx(unclipped)


def test_a_request_that_fails_adds_nothing(policy):
    learner = TokenLearner(policy, "other")
    loss = RequestedLoss.of("importance_sampling", {})
    finished(learner.run(samples_of("importance_sampling", 1), loss, backward=True))
    before = [one.grad.clone() for one in policy.adapter_parameters("other")]
    broken = samples_of("importance_sampling", 2)
    broken[0].inputs["logprobs"][:] = -np.inf
    with pytest.raises(SparringError, match="not finite"):
        finished(learner.run(broken, loss, backward=True))
    finished(learner.run(broken[1:2], loss, backward=False))
    for own, gradient in zip(policy.adapter_parameters("other"), before, strict=True):
        assert torch.equal(own.grad, gradient)


def test_a_restored_learner_goes_on_with_the_same_numbers(policy):
    learner, loss = TokenLearner(policy, "other"), RequestedLoss.of("cross_entropy", {})
    for seed in range(3):
        finished(learner.run(samples_of("cross_entropy", seed), loss, backward=True))
        if seed < 2:
            learner.step(STEP)
    policy.add_policy("restored", LoraSettings(RANK, 32, LAYERS), seed=9)
    restored = TokenLearner(policy, "restored")
    restored.load_tensors(learner.tensors())
    assert restored.step(STEP) == learner.step(STEP)
    states = [policy.adapter_state(name) for name in ("other", "restored")]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    with pytest.raises(SparringError, match="forward_backward"):
        learner.step(STEP)


def test_initial_weights_depend_on_the_seed_alone(policy):
    policy.add_policy("one", LoraSettings(2), seed=1)
    policy.add_policy("same", LoraSettings(2), seed=1)
    policy.add_policy("another", LoraSettings(2), seed=2)
    first, same, another = (policy.adapter_state(name) for name in ("one", "same", "another"))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], another[key]) for key in first)
    policy.drop_policy("same")
    assert "same" not in policy.policies
    assert policy.adapter_parameters("same") == []


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("stable_reinforce", {}, "stable_reinforce"),
        ("ppo", {"clip": 1.0}, "clip_low_threshold"),
        ("dro", {"beta": "x"}, "finite"),
        ("dro", {"beta": float("nan")}, "finite"),
    ],
)
def test_other_losses_and_settings_are_refused_by_name(name, settings, problem):
    with pytest.raises(InputError, match=problem):
        RequestedLoss.of(name, settings)


def test_inputs_are_exactly_those_of_the_loss():
    loss = RequestedLoss.of("ppo", {})
    loss.check_inputs({"logprobs", "advantages", "clip_low_threshold"})
    with pytest.raises(InputError, match="needs advantages"):
        loss.check_inputs({"logprobs"})
    with pytest.raises(InputError, match="mask"):
        loss.check_inputs({"logprobs", "advantages", "mask"})
