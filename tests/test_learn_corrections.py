"""Corrections, divergences and aggregations, against numbers computed by hand."""

import math

import pytest
import torch

from sparring.config.algorithms import CorrectedSettings
from sparring.learn.algorithms.terms import correction_factors, divergence
from sparring.learn.batch import mean_answer_length
from tiny_models import make_record

# Two answers, of two tokens and of one.
ANSWER_S, OFFSET_S = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
LEARNER = [0.4, 0.1, 0.9]
ENGINE = [0.1, 0.2, 0.3]
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


@pytest.mark.parametrize("kind", ["tis", "mis", "icepop", "kpop"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("logprobs", [[0.0, -200.0, -1.0], [-200.0, -200.0, -200.0], [0.0, 0.0, 0.0]])
def test_factors_are_finite_and_bounded_for_extreme_probabilities(kind, level, logprobs):
    correction = corrected(kind, level, maximum=2.0)
    engine_S = torch.tensor([-200.0, -0.0, -90.0])
    factor_S = correction_factors(correction, torch.tensor(logprobs), engine_S, ANSWER_S)
    assert ((factor_S >= 0) & (factor_S <= 2)).all()


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
