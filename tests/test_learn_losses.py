"""Losses, corrections and divergences of tokens against numbers computed by hand."""

import math

import pytest
import torch

from sparring.config.algorithms import CorrectedSettings, LossSettings
from sparring.learn.algorithms import BaseAlgo, Reinforce, TokenLoss
from sparring.learn.algorithms.cispo import Cispo
from sparring.learn.algorithms.dppo import Dppo
from sparring.learn.algorithms.gspo import Gspo
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.algorithms.sapo import Sapo
from sparring.learn.algorithms.terms import correction_factors, divergence
from sparring.learn.batch import Tokens, mean_answer_length
from tiny_models import algorithm_of, make_record, tiny_policy

Found = tuple[list[float], list[float], dict[str, float]]


def tokens_of(advantage_S: torch.Tensor, behaviour_S: torch.Tensor, answers: list[int]) -> Tokens:
    answer_S = torch.tensor(answers)
    return Tokens(
        advantage_S=advantage_S,
        credit_S=advantage_S,
        behaviour_S=behaviour_S,
        stale_S=torch.zeros(len(answers), dtype=torch.bool),
        answer_S=answer_S,
        offset_S=torch.tensor([answers[:place].count(one) for place, one in enumerate(answers)]),
        length_S=torch.bincount(answer_S)[answer_S].float(),
        mean_length=len(answers) / (1 + max(answers)),
    )


def losses(
    algorithm: TokenLoss,
    ratios: list[float],
    advantages: list[float],
    answers: list[int] | None = None,
    old: float = 0.1,
) -> Found:
    """Return each token's loss, its derivative by log pi at pi = ratio * old, and the sums of metrics."""
    noted: dict[str, float] = {}
    algorithm.add_metric = lambda name, values_S: noted.update({name: float(values_S.sum())})
    old_S = torch.log(torch.full((len(ratios),), old))
    logprobs_S = (old_S + torch.log(torch.tensor(ratios))).requires_grad_()
    advantage_S = torch.tensor(advantages)
    tokens = tokens_of(advantage_S, old_S, answers or list(range(len(ratios))))
    loss_S = algorithm.token_loss(logprobs_S, old_S, advantage_S, tokens)
    loss_S.sum().backward()
    return loss_S.tolist(), logprobs_S.grad.tolist(), noted


RATIOS = [0.5, 0.5, 1.0, 1.1, 2.0, 2.0, 9.0]
ADVANTAGES = [3.0, -3.0, 2.0, -1.0, 3.0, -3.0, -1.0]


@pytest.mark.parametrize(
    ("options", "expected", "gradient"),
    [
        ({}, [-1.5, 2.4, -2, 1.1, -3.6, 6, 9], [-1.5, 0, -2, 1.1, 0, 6, 9]),
        ({"clip_high": 1.5}, [-1.5, 2.4, -2, 1.1, -6, 6, 9], [-1.5, 0, -2, 1.1, -6, 6, 9]),
        ({"clip_low": 0.6}, [-1.5, 1.5, -2, 1.1, -3.6, 6, 9], [-1.5, 1.5, -2, 1.1, 0, 6, 9]),
        ({"dual_clip": 3.0}, [-1.5, 2.4, -2, 1.1, -3.6, 6, 3], [-1.5, 0, -2, 1.1, 0, 6, 0]),
    ],
)
def test_ppo_clips_the_ratio_in_the_direction_of_the_advantage(options, expected, gradient):
    algorithm = algorithm_of(Ppo, **options)
    loss, derivative, metrics = losses(algorithm, RATIOS, ADVANTAGES)
    assert loss == pytest.approx(expected)
    assert derivative == pytest.approx(gradient)
    assert metrics["clip_fraction"] == gradient.count(0)


def test_gspo_clips_the_geometric_mean_of_an_answers_ratios():
    # The means of the answers are 1.0004, which no bound touches, 2 and 2.
    ratios = [1.0004 * 4, 1.0004 / 4, 1.0, 4.0, 2.0]
    advantages = [1.0, 1.0, 1.0, 1.0, -1.0]
    algorithm = algorithm_of(Gspo, clip_low=3e-4, clip_high=5e-4)
    loss, derivative, metrics = losses(algorithm, ratios, advantages, [0, 0, 1, 1, 2])
    mean = 1.0004
    assert loss == pytest.approx([-mean, -mean, -1.0005, -1.0005, 2])
    assert derivative == pytest.approx([-mean, -mean, 0, 0, 2])
    assert metrics["clip_fraction"] == 2
    assert algorithm.settings.aggregation == "seq-mean-token-mean"


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    algorithm = algorithm_of(Cispo, clip_high=1.5)
    loss, derivative, metrics = losses(algorithm, [0.1, 1.0, 2.0, 9.0], [1.0, -1.0, 2.0, -1.0])
    log_pi = torch.log(torch.tensor([0.01, 0.1, 0.2, 0.9])).tolist()
    weight = [0.1, -1.0, 4.0, -2.5]
    assert derivative == pytest.approx([-one for one in weight])
    assert loss == pytest.approx([-w * one for w, one in zip(weight, log_pi, strict=True)])
    assert metrics["clip_fraction"] == 1


def test_sapo_closes_its_gate_slowly_and_is_the_policy_gradient_where_nothing_has_changed():
    loss, derivative, _ = losses(Sapo(), [1.0, 1.0, 3.0, 3.0], [2.0, -2.0, 1.0, -1.0])
    gates = [1 / (1 + 2.718281828459045 ** (-tau * 2)) for tau in (1.0, 1.05)]
    assert loss == pytest.approx([-4.0, 4 / 1.05, -4 * gates[0], 4 / 1.05 * gates[1]])
    assert derivative[:2] == pytest.approx([-2, 2])
    assert derivative[2:] == pytest.approx([-12 * gates[0] * (1 - gates[0]), 12 * gates[1] * (1 - gates[1])])


def test_dppo_masks_by_the_change_of_the_probability():
    # Changes of 0.1 (a ratio of 1.5), 0.3, 0.3, -0.1 and -0.15 from 0.2.
    algorithm = algorithm_of(Dppo, clip_low=0.12, clip_high=0.25)
    loss, derivative, metrics = losses(
        algorithm, [1.5, 2.5, 2.5, 0.5, 0.25], [1.0, 1.0, -1.0, -1.0, -1.0], old=0.2
    )
    assert derivative == pytest.approx([-1.5, 0, 2.5, 0.5, 0])
    assert loss[0] == pytest.approx(-1.5 * float(torch.log(torch.tensor(0.3))))
    assert metrics["clip_fraction"] == 2


def test_dppo_bounds_the_weight_of_a_token_that_was_very_unlikely():
    _, derivative, _ = losses(Dppo(), [1e4], [1.0], old=1e-6)
    assert derivative == pytest.approx([-20])


@pytest.mark.parametrize("kind", [Ppo, Gspo, Cispo, Dppo, Reinforce])
def test_every_loss_is_the_policy_gradient_in_the_first_step(kind):
    _, derivative, _ = losses(kind(), [1.0, 1.0, 1.0], [2.0, -1.0, 0.0])
    assert derivative == pytest.approx([-2, 1, 0])


def whole_loss(algorithm: TokenLoss, old_S: torch.Tensor | None, pi_S: torch.Tensor) -> tuple[float, list]:
    """Return the loss of an answer of two tokens that the engine drew with 0.1 each, and its gradient."""
    algorithm.max_generation_len = 4
    tokens = tokens_of(torch.tensor([3.0, 3.0]), torch.log(torch.tensor([0.1, 0.1])), [0, 0])
    tokens.old_S = old_S
    logprobs_S = pi_S.clone().requires_grad_()
    loss = algorithm.loss(logprobs_S, tokens)
    loss.backward()
    return float(loss.detach()), logprobs_S.grad.tolist()


def test_the_correction_is_about_old_and_the_engine_and_the_ratio_about_pi_and_old():
    old_S, pi_S = torch.log(torch.tensor([0.15, 0.3])), torch.log(torch.tensor([0.165, 0.6]))
    loss, gradient = whole_loss(algorithm_of(Ppo, max_importance_weight=2.0), old_S, pi_S)
    assert loss == pytest.approx(-3 * (1.5 * 1.1 + 2.0 * 1.2) / 4)
    assert gradient == pytest.approx([-3 * 1.5 * 1.1 / 4, 0])


def test_without_old_log_probabilities_the_ratio_is_one_and_the_correction_about_pi():
    pi_S = torch.log(torch.tensor([0.15, 0.3]))
    loss, gradient = whole_loss(Ppo(), None, pi_S)
    assert loss == pytest.approx(-3 * (1.5 + 2.0) / 4)
    assert gradient == pytest.approx([-3 * 1.5 / 4, -3 * 2.0 / 4])


def test_the_weights_of_reinforce_are_about_pi_in_every_step():
    old_S, pi_S = torch.log(torch.tensor([0.05, 0.05])), torch.log(torch.tensor([0.15, 0.3]))
    _, gradient = whole_loss(Reinforce(), old_S, pi_S)
    assert gradient == pytest.approx([-3 * 1.5 / 4, -3 * 2.0 / 4])


def test_metrics_count_tokens_that_were_clipped_corrected_and_masked():
    """The engine's probabilities are e-2, e-4 and e-3 times the learner's: weights of 7.4, 55 and 20."""
    policy = tiny_policy()
    algorithm = algorithm_of(Reinforce, correction="mis", max_importance_weight=30.0)
    algorithm.initialize(policy, 4)
    first = make_record([1, 2], [3, 4]), make_record([5], [6])
    batch = algorithm.prepare_batch(list(first))
    algorithm.keep_logprobs(batch)
    old_S = torch.from_numpy(batch.old)
    lower = torch.tensor([2.0, 4.0, 3.0])
    records = [
        make_record([1, 2], [3, 4], logprobs=(old_S - lower).tolist()[:2]),
        make_record([5], [6], logprobs=(old_S - lower).tolist()[2:]),
    ]
    metrics = algorithm.update(algorithm.prepare_batch(records))
    weights = torch.exp(lower)
    assert metrics["correction_masked"] == pytest.approx(1 / 3)
    assert metrics["correction_mean"] == pytest.approx(float(weights[0] + weights[2]) / 3, rel=1e-4)
    assert "clip_fraction" not in metrics


class NoLoss(BaseAlgo):
    """Nothing but what BaseAlgo adds to a loss."""

    def loss(self, logprobs_S: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return 0.0 * logprobs_S.sum()


class MeanOfTokens(NoLoss):
    """The same with another weight for each token."""

    def aggregate(self, terms_S: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return terms_S.sum() / tokens.mean_length


def test_kl_and_entropy_have_the_weight_that_the_settings_or_the_algorithm_give_tokens():
    records = [make_record([1, 2], [3, 4, 5], logprobs=[-9.0] * 3), make_record([5], [6], logprobs=[-9.0])]
    found = []
    for kind, aggregation in (
        (NoLoss, "seq-mean-token-sum-norm"),
        (MeanOfTokens, "seq-mean-token-sum-norm"),
        (NoLoss, "token-mean"),
        (NoLoss, "seq-mean-token-sum"),
    ):
        terms = LossSettings(kl_weight=0.5, kl_estimator="k2", entropy_weight=0.3, aggregation=aggregation)
        algorithm = kind(terms)
        algorithm.initialize(tiny_policy(), 8)
        found.append(algorithm.update(algorithm.prepare_batch(records)))
    constant, by_token, as_set, summed = found
    expected = 0.5 * by_token["kl_to_base"] - 0.3 * by_token["entropy"]
    assert by_token["kl_to_base"] > 0.01
    assert by_token["loss"] == pytest.approx(expected, rel=1e-5)
    assert constant["loss"] == pytest.approx(by_token["loss"] * 2 / 8, rel=1e-5)
    assert as_set["loss"] == by_token["loss"]
    assert summed["loss"] == pytest.approx(constant["loss"] * 8, rel=1e-5)
    assert constant["kl_to_base"] == by_token["kl_to_base"], "in nats per token"


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
        (corrected("icepop", "sequence", maximum=2.5), [2, 2, 0]),
        (corrected("tis", "geometric", maximum=2.5), [GEOMETRIC, GEOMETRIC, 2.5]),
        (corrected("mis", "geometric", maximum=2.5), [GEOMETRIC, GEOMETRIC, 0]),
        (corrected("icepop", "geometric", maximum=2.5), [GEOMETRIC, GEOMETRIC, 0]),
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


def test_kpop_masks_whole_answers_by_the_mean_of_their_divergences():
    distances = [max(binary_kl(p, q), binary_kl(q, p)) for p, q in zip(LEARNER, ENGINE, strict=True)]
    mean = (distances[0] + distances[1]) / 2
    assert mean < distances[0] - 0.01
    for level, weight in (("sequence", 2.0), ("geometric", GEOMETRIC)):
        settings = corrected("kpop", level, maximum=9, threshold=mean + 0.005)
        found = correction_factors(settings, logs(LEARNER), logs(ENGINE), ANSWER_S).tolist()
        assert found == pytest.approx([weight, weight, 0])
