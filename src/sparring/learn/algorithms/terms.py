"""What losses are made of besides that of the tokens: corrections, divergences, legal answers, values.

Let w = pi(token) / mu(token), where the learner has pi and the engine drew the token with mu: an older
version, or the same weights computed differently (bfloat16, other kernels, other experts). A correction
multiplies a token's loss by a factor that has no gradient:

- ``none``: 1;
- ``tis``: min(w, C), truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly
  Brings You Off-Policy RL Training"; C = 2);
- ``mis``: w where w <= C, otherwise 0, masked importance sampling;
- ``icepop``: w where c <= w <= C, otherwise 0 (Ring team 2025; c = 0.5, C = 5);
- ``kpop``: w where the KL divergences between pi and mu, each reduced to "this token or another one", are at
  most ``kpop_threshold`` in both directions, otherwise 0 (Ring team 2026; 2.0). w is bounded as in ``tis``.

At the level ``sequence``, w is the product over the answer's tokens, and ``kpop`` masks an answer if the mean
of its tokens' divergences exceeds the threshold. At the level ``geometric``, w is the geometric mean,
exp(mean over the answer's tokens of log pi - log mu) (verl, slime); its bounds are near 1, such as 0.99,
1.01.

Estimators of KL(pi || reference) from tokens that pi drew (Schulman 2020, "Approximating KL Divergence"),
with x = log pi(token) - log reference(token); terms of other tokens need an importance weight:

- ``k1``: x. Unbiased, of either sign. As a term of the loss its gradient is zero in the mean, so it belongs
  in the reward;
- ``k2``: x^2 / 2. Biased, never negative; its mean gradient is that of KL(pi || reference);
- ``k3``: exp(-x) - 1 + x. Unbiased, never negative; its mean gradient is that of KL(reference || pi). It
  grows without bound where pi makes a token unlikely, so -x is bounded by ``MAX_LOG_RATIO``;
- ``k3+``: the value of k3 and the gradient of k2 (straight-through, as in verl), so both are right.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparring.config.algorithms import CorrectedSettings, KLEstimator
from sparring.learn.batch import Batch, Counts, Tokens
from sparring.learn.critic import Critic
from sparring.learn.legal_answers import FloatArray
from sparring.learn.trie import TreePlan

MASKING = ("mis", "icepop", "kpop")
TINY = 1e-7
"""Distance from 0 and 1 at which probabilities are held, so that their logarithms are finite."""


def correction_factors(
    settings: CorrectedSettings, logprobs_S: Tensor, behaviour_S: Tensor, answer_S: Tensor
) -> Tensor:
    """Return the factor of each token's loss, from log pi, log mu and the index of each token's answer."""
    logprobs_S = logprobs_S.detach()
    kind, least, most = settings.correction, settings.min_importance_weight, settings.max_importance_weight
    if kind == "none":
        return torch.ones_like(logprobs_S)
    log_weight_S = logprobs_S - behaviour_S
    if settings.correction_level == "sequence":
        log_weight_S = sum_of_answers(log_weight_S, answer_S)
    elif settings.correction_level == "geometric":
        log_weight_S = mean_of_answers(log_weight_S, answer_S)
    weight_S = torch.exp(log_weight_S)
    if kind == "tis":
        return weight_S.clamp(max=most)
    if kind == "mis":
        return weight_S.masked_fill(weight_S > most, 0.0)
    if kind == "icepop":
        return weight_S.masked_fill((weight_S < least) | (weight_S > most), 0.0)
    there_S, back_S = _binary_kl(logprobs_S, behaviour_S), _binary_kl(behaviour_S, logprobs_S)
    distance_S = torch.maximum(there_S, back_S)
    if settings.correction_level != "token":
        distance_S = mean_of_answers(distance_S, answer_S)
    return weight_S.clamp(max=most).masked_fill(distance_S > settings.kpop_threshold, 0.0)


def is_off_policy(
    logprobs_S: Tensor, behaviour_S: Tensor, credit_S: Tensor, answer_S: Tensor, threshold: float
) -> Tensor:
    """Return whether off-policy sequence masking leaves each token's answer out (DeepSeek-V3.2, arXiv
    2512.02556).

    So it is if the advantage, ``credit_S``, is negative and the mean of log mu - log pi exceeds
    ``threshold``.
    """
    distance_S = mean_of_answers(behaviour_S - logprobs_S.detach(), answer_S)
    return (distance_S > threshold) & (credit_S < 0)


def sum_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the sum over the tokens of its answer."""
    count = int(answer_S.max()) + 1 if len(answer_S) else 0
    sum_A = torch.zeros(count, dtype=values_S.dtype, device=values_S.device)
    return sum_A.index_add(0, answer_S, values_S)[answer_S]


def sum_to_end(values_S: Tensor, answer_S: Tensor, offset_S: Tensor) -> Tensor:
    """Return, for each token, the sum over its answer's tokens from itself, at ``offset_S``, to the last."""
    if not len(answer_S):
        return values_S
    values_AT = values_S.new_zeros(int(answer_S.max()) + 1, int(offset_S.max()) + 1)
    values_AT[answer_S, offset_S] = values_S
    return values_AT.flip(1).cumsum(1).flip(1)[answer_S, offset_S]


def mean_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the mean over the tokens of its answer."""
    return sum_of_answers(values_S, answer_S) / sum_of_answers(torch.ones_like(values_S), answer_S)


def _binary_kl(log_p_S: Tensor, log_q_S: Tensor) -> Tensor:
    p_S = log_p_S.exp().clamp(TINY, 1 - TINY)
    q_S = log_q_S.exp().clamp(TINY, 1 - TINY)
    return p_S * torch.log(p_S / q_S) + (1 - p_S) * torch.log((1 - p_S) / (1 - q_S))


MAX_LOG_RATIO = 2.6
"""Above this value of log(reference / pi), k3 stays at 9.9. verl bounds it at 10 (``low_var_kl``)."""


def divergence(name: KLEstimator, logprobs_S: Tensor, reference_S: Tensor) -> Tensor:
    """Return the estimate for each token; its gradient flows to ``logprobs_S``."""
    log_ratio_S = reference_S - logprobs_S
    if name == "k1":
        return -log_ratio_S
    if name == "k2":
        return log_ratio_S.square() / 2
    bounded_S = log_ratio_S.clamp(max=MAX_LOG_RATIO)
    k3_S = torch.exp(bounded_S) - 1 - bounded_S
    if name == "k3":
        return k3_S
    k2_S = log_ratio_S.square() / 2
    return k2_S + (k3_S - k2_S).detach()


def with_kl_in_advantage(tokens: Tokens, kl_S: Tensor, weight: float, num_answers: int) -> Tokens:
    """Return the tokens with A - weight * KL to the end of the answer as their advantage."""
    to_end_S = sum_to_end(kl_S, tokens.answer_S, tokens.offset_S)
    return replace(tokens, advantage_S=tokens.advantage_S - weight * to_end_S / num_answers)


def cross_entropy(batch: Batch, plan: TreePlan, weight_A: FloatArray, logprobs_S: Tensor) -> Tensor:
    """Return one plan's part of the cross-entropy from weights of the legal answers to the policy."""
    weight_S = batch.answers.token_weights(plan, weight_A, batch.num_answers)
    return -(_beside(weight_S.astype(np.float32), logprobs_S) * logprobs_S).sum()


def value_loss(critic: Critic, value_C: Tensor, plan: TreePlan, batch: Batch) -> Tensor:
    """Return one plan's part of the critic's loss."""
    first_S = batch.first_tokens(plan)
    answer_r = plan.sample_S[first_S]
    value_r = value_C[_beside(plan.prediction_S[first_S], value_C)]
    old_r, target_r = (_beside(one[answer_r], value_C) for one in (batch.value_R, batch.target_R))
    return critic.loss(value_r, old_r, target_r) / batch.num_answers


def _beside(array: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.from_numpy(array).to(tensor.device)


@dataclass
class Mismatch:
    """The absolute differences between engine and learner, added up over tokens of this version and older."""

    fresh: float = 0.0
    stale: float = 0.0

    def add(self, logprobs_S: Tensor, tokens: Tokens) -> None:
        """Add one plan's drawn tokens."""
        difference_S = (logprobs_S.detach() - tokens.behaviour_S).abs()
        self.fresh += float(difference_S[~tokens.stale_S].sum())
        self.stale += float(difference_S[tokens.stale_S].sum())

    def metrics(self, counts: Counts) -> dict[str, float]:
        """Return the means over tokens; one without tokens is missing."""
        means = {}
        if counts.fresh_tokens:
            means["mismatch"] = self.fresh / counts.fresh_tokens
        if counts.stale_tokens:
            means["stale_mismatch"] = self.stale / counts.stale_tokens
        return means
