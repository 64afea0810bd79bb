"""Corrections, divergences and aggregations, against numbers computed by hand."""

import math

import pytest
import torch

from sparring.config.algorithms import CorrectedSettings
from sparring.learn.algorithms import Reinforce
from sparring.learn.algorithms.terms import correction_factors, divergence, is_off_policy, sum_to_end
from sparring.learn.batch import Tokens, mean_answer_length
from tiny_models import algorithm_of, make_record, tiny_policy

# Two answers, of two tokens and of one.
ANSWER_S, OFFSET_S = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
LEARNER = [0.4, 0.1, 0.9]
ENGINE = [0.1, 0.2, 0.3]
WEIGHTS = [4.0, 0.5, 3.0]
GEOMETRIC = math.sqrt(4.0 * 0.5)


def logs(values: list[float]) -> torch.Tensor:
    return torch.log(torch.tensor(values))


def corrected(kind, level="token", maximum=2.0, minimum=0.5, threshold=2.0) -> CorrectedSettings:
    return CorrectedSettings(
        correction=kind,
        correction_level=level,
        max_importance_weight=maximum,
        min_importance_weight=minimum,
        kpop_threshold=threshold,
    )


def some_tokens() -> Tokens:
    return Tokens(
        advantage_S=torch.ones(3),
        credit_S=torch.ones(3),
        behaviour_S=logs(ENGINE),
        stale_S=torch.zeros(3, dtype=torch.bool),
        answer_S=ANSWER_S,
        offset_S=OFFSET_S,
        length_S=torch.tensor([2.0, 2.0, 1.0]),
        mean_length=1.5,
    )


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (corrected("none"), [1, 1, 1]),
        (corrected("tis", maximum=3.5), [3.5, 0.5, 3]),
        (corrected("mis", maximum=3.5), [0, 0.5, 3]),
        (corrected("icepop", maximum=3.5, minimum=0.6), [0, 0, 3]),
        (corrected("tis", "sequence", maximum=2.5), [2, 2, 2.5]),
        (corrected("mis", "sequence", maximum=2.5), [2, 2, 0]),
        (corrected("icepop", "sequence", maximum=5, minimum=2.5), [0, 0, 3]),
        (corrected("tis", "geometric", maximum=2.5), [GEOMETRIC, GEOMETRIC, 2.5]),
        (corrected("mis", "geometric", maximum=2.5), [GEOMETRIC, GEOMETRIC, 0]),
        (corrected("icepop", "geometric", maximum=5, minimum=1.5), [0, 0, 3]),
    ],
)
def test_factors_of_corrections_have_these_values(correction, expected):
    logprobs_S = logs(LEARNER).requires_grad_()
    factor_S = correction_factors(correction, logprobs_S, logs(ENGINE), ANSWER_S)
    torch.testing.assert_close(factor_S, torch.tensor(expected, dtype=torch.float32))
    assert not factor_S.requires_grad


def binary_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_kpop_masks_by_the_larger_of_both_binary_divergences():
    distances = [max(binary_kl(p, q), binary_kl(q, p)) for p, q in zip(LEARNER, ENGINE, strict=True)]
    between = (distances[0] + distances[2]) / 2
    assert distances[1] < distances[0] < between < distances[2]
    settings = corrected("kpop", maximum=3.5, threshold=between)
    found = correction_factors(settings, logs(LEARNER), logs(ENGINE), ANSWER_S).tolist()
    assert found == pytest.approx([3.5, 0.5, 0])


def test_kpop_masks_whole_answers_by_the_mean_of_their_divergences():
    distances = [max(binary_kl(p, q), binary_kl(q, p)) for p, q in zip(LEARNER, ENGINE, strict=True)]
    mean = (distances[0] + distances[1]) / 2
    assert mean < distances[0] - 0.01
    for level, weight in (("sequence", 2.0), ("geometric", GEOMETRIC)):
        settings = corrected("kpop", level, maximum=9, threshold=mean + 0.005)
        found = correction_factors(settings, logs(LEARNER), logs(ENGINE), ANSWER_S).tolist()
        assert found == pytest.approx([weight, weight, 0])


@pytest.mark.parametrize("kind", ["tis", "mis", "icepop", "kpop"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("logprobs", [[0.0, -200.0, -1.0], [-200.0, -200.0, -200.0], [0.0, 0.0, 0.0]])
def test_factors_are_finite_and_bounded_for_extreme_probabilities(kind, level, logprobs):
    correction = corrected(kind, level, maximum=2.0)
    engine_S = torch.tensor([-200.0, -0.0, -90.0])
    factor_S = correction_factors(correction, torch.tensor(logprobs), engine_S, ANSWER_S)
    assert ((factor_S >= 0) & (factor_S <= 2)).all()


def test_off_policy_masking_leaves_out_bad_answers_that_the_policy_no_longer_gives():
    # The mean of log mu - log pi is -log(2) / 2 for the first answer, and 1 for the second.
    learner_S = torch.tensor([*logs(LEARNER)[:2], math.log(0.3) - 1])
    for advantages, expected in (([-1, -1, -1], [False, False, True]), ([-1, -1, 1], [False] * 3)):
        left_out_S = is_off_policy(learner_S, logs(ENGINE), torch.tensor(advantages), ANSWER_S, 0.99)
        assert left_out_S.tolist() == expected
    assert not is_off_policy(learner_S, logs(ENGINE), -torch.ones(3), ANSWER_S, 1.01).any()


def test_sums_to_the_end_are_those_of_each_answer_from_the_token_on():
    answer_S, offset_S = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 1, 2, 0, 0, 1])
    values_S = torch.tensor([1.0, 2.0, 4.0, 8.0, -1.0, 0.5])
    assert sum_to_end(values_S, answer_S, offset_S).tolist() == [7.0, 6.0, 4.0, 8.0, -0.5, 0.5]
    assert sum_to_end(values_S[:0], answer_S[:0], offset_S[:0]).tolist() == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", (1 + 2 + 4) / 1.5),
        ("seq-mean-token-mean", (1 + 2) / 2 + 4),
        ("seq-mean-token-sum", 1 + 2 + 4),
        ("seq-mean-token-sum-norm", (1 + 2 + 4) / 5),
    ],
)
def test_aggregations_weight_tokens_like_this(name, expected):
    loss_S = torch.tensor([1.0, 2.0, 4.0])
    algorithm = algorithm_of(Reinforce, aggregation=name)
    algorithm.initialize(tiny_policy(), max_generation_len=5)
    assert float(algorithm.aggregate(loss_S, some_tokens())) == pytest.approx(expected)


def test_the_mean_length_of_answers_counts_tokens_that_are_trained_on():
    records = [make_record([1, 2], [3, 4, 5, 6]), make_record([1, 2, 3], [5]), make_record([1] * 9, [2])]
    assert mean_answer_length(records, None) == 2
    assert mean_answer_length(records, 4) == 1.5
    assert mean_answer_length(records, 2) == 1


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [
        ("k1", math.log(4), 1.0),
        ("k2", math.log(4) ** 2 / 2, math.log(4)),
        ("k3", 0.25 - 1 + math.log(4), 1 - 0.25),
        ("k3+", 0.25 - 1 + math.log(4), math.log(4)),
    ],
)
def test_estimators_of_the_divergence_have_these_values_and_gradients(name, value, gradient):
    logprob = logs([0.8]).requires_grad_()
    estimate = divergence(name, logprob, logs([0.2]))
    estimate.sum().backward()
    assert float(estimate.detach()) == pytest.approx(value)
    assert float(logprob.grad) == pytest.approx(gradient)


@pytest.mark.parametrize("name", ["k2", "k3+"])
def test_the_mean_gradient_of_these_estimators_is_that_of_the_divergence(name):
    logits = torch.tensor([0.3, -1.0, 0.5], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.4, -0.2]), 0)
    logprobs = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    estimate = (logprobs.exp().detach() * divergence(name, logprobs, reference)).sum()
    torch.testing.assert_close(torch.autograd.grad(estimate, logits)[0], exact)


@pytest.mark.parametrize("name", ["k1", "k3", "k3+"])
def test_the_mean_of_these_estimators_is_the_divergence(name):
    logprobs, reference = logs([0.5, 0.3, 0.2]), logs([0.2, 0.2, 0.6])
    exact = float((logprobs.exp() * (logprobs - reference)).sum())
    mean = float((logprobs.exp() * divergence(name, logprobs, reference)).sum())
    assert mean == pytest.approx(exact)
