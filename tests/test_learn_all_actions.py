"""All actions: its gradients by plain autograd from the formulas, and a learner that follows them."""

import math
from functools import partial

import pytest
import torch

from magnet_records import (
    LEGAL,
    MAYBE,
    NO,
    RECORDS,
    SCALE,
    UNIFORM,
    YES,
    answer_logprobs,
    learner_with,
    magnet_of,
    magnet_policy,
    scaled,
)
from sparring.core import InputError, SparringError, TrainingRecord
from sparring.core.adapters import reference_of
from sparring.learn import trie
from sparring.learn.algorithms import Reinforce
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.batch import Batch
from sparring.learn.policy import TRAINED, PolicyModel
from tiny_models import algorithm_of, constant, make_record

ALPHA = 0.5
PROMPTS = [
    ([1, 2, 3], LEGAL, 5 / 6 * 3**0.5 / (3**0.5 + 2**0.5)),
    ([9, 8], [YES, NO, MAYBE], 5 / 6 * 2**0.5 / (3**0.5 + 2**0.5)),
]
"""Prompts of the records with their legal answers and weight in the loss."""
VALUES = {(1, 2, 3): [0.625 / 2.1, -0.9375 / 1.1], (9, 8): [0.0, 0.625 / 1.1, 0.0]}
"""What the answers of the records are worth, times the scale; the records say that they were certain."""


all_actions = partial(algorithm_of, AllActions)


def gradients(algorithm: AllActions, policy: PolicyModel, records=RECORDS) -> list[torch.Tensor]:
    """Return the gradients of one update."""
    policy.model.zero_grad(set_to_none=True)
    algorithm.initialize(policy, max_generation_len=7)
    algorithm.begin(records)
    algorithm.update(algorithm.prepare_batch(records))
    return [parameter.grad.clone() for parameter in policy.adapter_parameters()]


def plain_gradients(policy: PolicyModel, objective) -> list[torch.Tensor]:
    """Return the gradients of - ``objective``(log pi, Q, log rho) - sum_a s(a) log p(a) over all prompts."""
    loss = torch.zeros(())
    for prompt, legal, share in PROMPTS:
        logprobs = answer_logprobs(policy, TRAINED, prompt, legal)
        with torch.no_grad():
            log_rho = torch.log(magnet_of(answer_logprobs(policy, reference_of(TRAINED), prompt, legal)))
        value = torch.tensor(VALUES[tuple(prompt)]) / SCALE
        mass = torch.logsumexp(logprobs, dim=0)
        illegal = 1 - torch.exp(mass)
        legality = ((torch.exp(logprobs) + illegal / len(legal)).detach() * logprobs).sum()
        loss = loss - share * (objective(logprobs - mass, value, log_rho) + legality)
    with policy.adapter(TRAINED):
        return list(torch.autograd.grad(loss, policy.adapter_parameters()))


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert max(one.abs().max().item() for one in expected) > 1e-3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5)


def test_policy_is_the_exact_gradient_of_the_expected_value_less_the_divergence():
    policy = magnet_policy()

    def objective(log_pi, value, log_rho):
        pi = torch.exp(log_pi)
        return (pi * value).sum() - ALPHA * (pi * (log_pi - log_rho)).sum()

    assert_equal(
        gradients(all_actions(alpha=ALPHA, uniform=UNIFORM), policy),
        plain_gradients(policy, objective),
    )


def gains(log_pi, value, log_rho, alpha=ALPHA):
    pi, value = torch.exp(log_pi), value - alpha * (log_pi - log_rho)
    return (value - (pi * value).sum()).detach()


def test_neurd_follows_the_gains_on_centred_log_probabilities():
    policy = magnet_policy()

    def objective(log_pi, value, log_rho):
        return (gains(log_pi, value, log_rho) * (log_pi - log_pi.mean())).sum()

    algorithm = all_actions(gradient="neurd", alpha=ALPHA, uniform=UNIFORM, beta=100.0)
    assert_equal(gradients(algorithm, policy), plain_gradients(policy, objective))


def test_neurd_pushes_no_answer_further_out_than_its_bound():
    policy = magnet_policy()
    alpha = 0.01  # otherwise the magnet pulls all answers inwards
    kept = []

    def objective(log_pi, value, log_rho):
        centred, gain = log_pi - log_pi.mean(), gains(log_pi, value, log_rho, alpha)
        inward = (centred.abs() <= bound) | (centred * gain < 0)
        kept.extend(inward.tolist())
        return (torch.where(inward, gain, 0.0) * centred).sum()

    for bound in (0.1, 0.5, 1.0):
        found = gradients(all_actions(gradient="neurd", alpha=alpha, uniform=UNIFORM, beta=bound), policy)
        assert_equal(found, plain_gradients(policy, objective))
    assert set(kept) == {True, False}


@pytest.mark.parametrize("gradient", ["policy", "neurd"])
def test_answers_that_plans_divide_have_the_same_gradient(monkeypatch, gradient):
    policy, legal = magnet_policy(), [[4, 5], [6, 7], [8]]
    branching = [make_record([1, 2, 3], legal[1], 1.0, alternatives=legal)]
    warm = [make_record([1, 2], legal[0], -1.0, alternatives=legal, temperature=0.5)]
    records = [*RECORDS, *branching, *warm]
    whole = packed(policy, records)
    assert len(whole.plans) == 2
    assert not whole.answers.divided(whole.plans, whole.num_answers).any()
    expected = gradients(all_actions(gradient=gradient), policy, records)

    monkeypatch.setattr(trie, "HANDY_TOKENS", 1)
    monkeypatch.setattr(trie, "REPEAT_SHARE", 0)
    parts = packed(policy, records)
    divided = parts.answers.divided(parts.plans, parts.num_answers)
    assert len(parts.plans) > 4
    assert set(divided.tolist()) == {True, False}
    assert_equal(gradients(all_actions(gradient=gradient), policy, records), expected)


def packed(policy: PolicyModel, records: list[TrainingRecord]) -> Batch:
    algorithm = AllActions()
    algorithm.initialize(policy, max_generation_len=7)
    return algorithm.prepare_batch(records)


@pytest.mark.parametrize("gradient", ["policy", "neurd"])
def test_the_stakes_of_a_game_do_not_matter(gradient):
    policy = magnet_policy()
    found = [
        gradients(all_actions(gradient=gradient), policy, scaled(RECORDS, factor)) for factor in (1.0, 13.0)
    ]
    assert_equal(found[1], found[0])


def test_the_scale_goes_on_where_a_saved_learner_left_it_and_begins_anew_with_its_policy():
    learner = learner_with(1, AllActions(), max_mismatch=1e6)
    untrained = learner.tensors()
    learner.update(RECORDS)
    saved = learner.tensors()
    other = learner_with(1, AllActions(), max_mismatch=1e6)
    other.load_tensors(saved, 1, 6)
    expected = learner.update(scaled(RECORDS, 3.0))["value_scale"]
    assert expected == pytest.approx(SCALE * math.sqrt((1 + 9) / 2))
    assert other.update(scaled(RECORDS, 3.0))["value_scale"] == pytest.approx(expected)
    other.start_again(untrained)
    assert other.update(RECORDS)["value_scale"] == pytest.approx(SCALE)


@pytest.mark.parametrize("other", [Reinforce, Magnet])
def test_the_state_of_another_algorithm_is_an_error(other):
    learner = learner_with(1, AllActions(), max_mismatch=1e6)
    learner.update(RECORDS)
    tensors = {name: one for name, one in learner.tensors().items() if not name.startswith("reference.")}
    tensors |= {f"reference.{name}": one for name, one in learner.policy.adapter_state(TRAINED).items()}
    with pytest.raises(InputError, match="the saved state is of another algorithm"):
        learner_with(1, other()).load_tensors(tensors, 1, 6)


class Counts(Reinforce):
    """Counts its updates in place."""

    def __init__(self):
        super().__init__()
        self.updates = torch.zeros(())

    def begin(self, records, version=0):
        super().begin(records, version)
        self.updates += 1

    def state(self):
        return {"updates": self.updates}

    def load_state(self, state):
        self.updates = state.get("updates", torch.zeros(()))


def test_a_state_that_is_changed_in_place_is_restored_too():
    learner = learner_with(1, Counts(), max_mismatch=1e6)
    untrained = learner.tensors()
    learner.update(RECORDS)
    learner.settings = constant(0.1, max_mismatch=1e-9)
    with pytest.raises(SparringError, match="engine and learner disagree"):
        learner.update(RECORDS)
    assert learner.algorithm.updates == 1
    learner.settings = constant(0.1)
    for _ in range(2):
        learner.start_again(untrained)
        assert learner.algorithm.updates == 0
        learner.update(RECORDS)


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_update_that_fails_leaves_the_scale_as_it_was(epochs):
    learner = learner_with(epochs, AllActions(), max_mismatch=1e-9)
    with pytest.raises(SparringError, match="engine and learner disagree"):
        learner.update(scaled(RECORDS, 9.0))
    assert not [name for name in learner.tensors() if name.startswith("algorithm.")]
