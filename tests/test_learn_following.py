"""Adapters that follow a policy, by their formula, and a policy that is tied to one."""

import pytest
import torch
from torch import Tensor

from sparring.core import InputError
from sparring.core.adapters import reference_of
from sparring.learn.algorithms import BaseAlgo, Reinforce
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.learner import Learner
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.schedules import Follower, Schedule
from sparring.learn.trie import build_plan
from tiny_models import algorithm_of, constant, make_record, perturb_adapter, tiny_policy

YES, NO = [4, 5], [4, 6, 7]
RECORDS = [
    make_record([1, 2, 3], YES, 1.0, alternatives=[YES, NO]),
    make_record([1, 2, 3], NO, -0.5, alternatives=[YES, NO]),
]
REFERENCE = reference_of(TRAINED)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("decay", "every", "warmup"), [(0.0, 1, 1), (0.0, 3, 1), (0.6, 1, 1), (0.9, 2, 9)])
def test_a_follower_has_its_formula(decay, every, warmup):
    policy = tiny_policy()
    follower = Follower(policy, TRAINED, "shadow", decay, every, warmup)
    follower.start()
    expected = policy.adapter_state()
    assert equal(policy.adapter_state("shadow"), expected)
    for version in range(1, 8):
        perturb_adapter(policy, seed=version)
        follower.follow(version)
        if version % every == 0:
            kept = min(decay, (version / every) / (version / every + warmup))
            new = policy.adapter_state()
            expected = {key: kept * value + (1 - kept) * new[key] for key, value in expected.items()}
        torch.testing.assert_close(policy.adapter_state("shadow"), expected)


def new_learner(policy: PolicyModel, algorithm: BaseAlgo, decay: float = 0.8, every: int = 1) -> Learner:
    fields = {"reference_decay": decay, "reference_every": every}
    return Learner(policy, algorithm, constant(steps=30, momentum=0.8, average_decay=0.9, **fields))


@pytest.mark.parametrize(("decay", "every"), [(0.8, 1), (0.0, 2)])
def test_a_learner_with_a_reference_continues_bit_identically_from_what_it_saved(decay, every):
    learner = new_learner(tiny_policy(), Magnet(), decay, every)
    for _ in range(3):
        learner.update(RECORDS)
    saved = learner.tensors()
    other = new_learner(tiny_policy(), Magnet(), decay, every)
    other.load_tensors(saved, 3, 6)
    for _ in range(3):
        assert learner.update(RECORDS)["loss"] == other.update(RECORDS)["loss"]
    assert equal(learner.tensors(), other.tensors())
    assert any(key.startswith("reference.") for key in saved)


def test_a_learner_that_starts_again_learns_as_it_did_in_the_beginning():
    """Weights, optimizer, average, reference and schedules are those of the start; the version goes on."""
    learner = new_learner(tiny_policy(), Magnet(), every=2)
    learner.learning_rate = Schedule(1e-3, 1e-5, 6, warmup=2)
    beginning = learner.tensors()
    once = [learner.update(RECORDS) for _ in range(3)]
    first = learner.tensors(), learner.policy.adapter_state(learner.average.name)
    learner.start_again(beginning)
    assert equal(learner.tensors(), beginning)
    assert not any(key.startswith("optimizer") for key in learner.tensors())
    assert learner.version == 3
    again = [learner.update(RECORDS) for _ in range(3)]
    for before, after in zip(once, again, strict=True):
        for name in ("loss", "grad_norm", "learning_rate"):
            assert after[name] == before[name]
    assert equal(learner.tensors(), first[0])
    assert equal(learner.policy.adapter_state(learner.average.name), first[1])
    assert learner.version == 6


def test_a_saved_state_without_the_reference_is_refused():
    learner = new_learner(tiny_policy(), Magnet())
    tensors = {key: value for key, value in learner.tensors().items() if not key.startswith("reference.")}
    with pytest.raises(InputError, match="the saved state has no reference"):
        learner.load_tensors(tensors, 1, 2)


def test_algorithms_that_do_not_need_a_reference_have_none():
    policy = tiny_policy()
    learner = new_learner(policy, algorithm_of(Reinforce, kl_weight=0.1))
    assert learner.reference is None
    assert not any(key.startswith("reference.") for key in learner.tensors())
    assert not policy.adapter_parameters(REFERENCE)


@pytest.mark.parametrize(("regulariser", "kl_weight"), [("none", 0.3), ("reference", 0.0)])
def test_divergence_and_regulariser_to_the_reference_have_the_gradient_of_their_formulas(
    regulariser, kl_weight
):
    policy = tiny_policy()
    learner = new_learner(
        policy,
        algorithm_of(
            Reinforce, regulariser=regulariser, kl_weight=kl_weight, kl_to="reference", kl_estimator="k2"
        ),
    )
    perturb_adapter(policy)  # now the reference differs from the policy
    algorithm = learner.algorithm
    algorithm.begin(RECORDS)
    metrics = algorithm.update(algorithm.prepare_batch(RECORDS), 0.5)
    found = [parameter.grad.clone() for parameter in policy.adapter_parameters()]

    logprobs = {name: [answer(policy, name, ids) for ids in (YES, NO)] for name in (TRAINED, REFERENCE)}
    loss = torch.zeros(())
    for number, record in enumerate(RECORDS):
        own_t, other_t = logprobs[TRAINED][number], logprobs[REFERENCE][number].detach()
        weight_t = torch.exp(own_t.detach() - torch.tensor(record.logprobs)).clamp(max=2.0)
        loss = loss - record.advantage * (weight_t * own_t).sum() / 8
        loss = loss + kl_weight * (weight_t * 0.5 * (own_t - other_t) ** 2).sum() / 8
    if regulariser == "reference":
        pull = torch.softmax(torch.stack([one.sum().detach() for one in logprobs[REFERENCE]]), dim=0)
        loss = loss - 0.5 * sum(p * one.sum() for p, one in zip(pull, logprobs[TRAINED], strict=True)) / 4
    with policy.adapter(TRAINED):
        expected = torch.autograd.grad(loss, policy.adapter_parameters())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert ("kl_to_reference" in metrics) == bool(kl_weight)
    assert "kl_to_base" not in metrics


def answer(policy: PolicyModel, adapter: str, ids: list[int]) -> Tensor:
    """Return the log-probabilities of an answer's tokens, computed alone."""
    with policy.adapter(adapter), torch.set_grad_enabled(adapter == TRAINED):
        return plan_logprobs(policy, build_plan([[1, 2, 3]], [ids]))
