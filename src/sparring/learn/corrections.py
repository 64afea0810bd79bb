"""Corrections for tokens to which engine and learner give different probabilities.

Let w = pi(token) / mu(token), where the learner has pi and the engine drew the token with mu: an older
version, or the same weights computed differently (bfloat16, other kernels, other experts). A correction
multiplies a token's loss by a factor that has no gradient:

- ``none``: 1;
- ``tis``: min(w, C), truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly
  Brings You Off-Policy RL Training"; C = 2);
- ``mis``: w where w <= C, otherwise 0, masked importance sampling;
- ``icepop``: w where c <= w <= C, otherwise 0 (Ring team 2025; c = 0.5, C = 5);
- ``kpop``: w where the KL divergences between pi and mu, each reduced to "this token or another one", are at
  most ``kpop_threshold`` in both directions, otherwise 0 (Ring team 2026; 2.0). Two tiny probabilities have a
  small divergence at any w, so w is bounded here as in ``tis``.

At the level ``sequence``, w is the product over the answer's tokens, so an answer is weighted or masked as a
whole; ``kpop`` then masks an answer if the mean of its tokens' divergences exceeds the threshold.

The product of many weights is soon far from 1 although no token's weight is. At the level ``geometric``, w is
their geometric mean, exp(mean over the answer's tokens of log pi - log mu), whatever the answer's length;
all else is as at the level ``sequence`` (the geometric level of verl and slime). Its bounds are near 1, such
as c = 0.99 and C = 1.01.

Off-policy sequence masking (DeepSeek-V3.2, 2025, arXiv 2512.02556) is apart from these; see
:func:`is_off_policy`.
"""

import torch
from torch import Tensor

from sparring.config.algorithms import CorrectedSettings

MASKING = ("mis", "icepop", "kpop")
"""The corrections whose factors can be 0."""
TINY = 1e-7
"""Distance from 0 and 1 at which probabilities are held, so that their logarithms are finite."""


def correction_factors(
    settings: CorrectedSettings, logprobs_S: Tensor, behaviour_S: Tensor, answer_S: Tensor
) -> Tensor:
    """Return the factor of each token's loss.

    Args:
        settings: the correction. The module's C and c are its importance weights.
        logprobs_S: log pi of each token.
        behaviour_S: log mu of each token.
        answer_S: index of each token's answer among those given.
    """
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
    """Return whether each token's answer is left out by off-policy sequence masking.

    That is so if its advantage, ``credit_S``, is negative and the mean of log mu - log pi over its tokens
    exceeds ``threshold``: making an answer less likely that the policy no longer gives teaches nothing.
    """
    distance_S = mean_of_answers(behaviour_S - logprobs_S.detach(), answer_S)
    return (distance_S > threshold) & (credit_S < 0)


def sum_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the sum over the tokens of its answer."""
    count = int(answer_S.max()) + 1 if len(answer_S) else 0
    sum_A = torch.zeros(count, dtype=values_S.dtype, device=values_S.device)
    return sum_A.index_add(0, answer_S, values_S)[answer_S]


def sum_to_end(values_S: Tensor, answer_S: Tensor, offset_S: Tensor) -> Tensor:
    """Return, for each token, the sum over the tokens of its answer from itself to the last.

    ``offset_S`` is the index of each token in its answer.
    """
    if not len(answer_S):
        return values_S
    values_AT = values_S.new_zeros(int(answer_S.max()) + 1, int(offset_S.max()) + 1)
    values_AT[answer_S, offset_S] = values_S
    return values_AT.flip(1).cumsum(1).flip(1)[answer_S, offset_S]


def mean_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the mean over the tokens of its answer."""
    return sum_of_answers(values_S, answer_S) / sum_of_answers(torch.ones_like(values_S), answer_S)


def _binary_kl(log_p_S: Tensor, log_q_S: Tensor) -> Tensor:
    """Return the KL divergence between two distributions over a token and everything else."""
    p_S = log_p_S.exp().clamp(TINY, 1 - TINY)
    q_S = log_q_S.exp().clamp(TINY, 1 - TINY)
    return p_S * torch.log(p_S / q_S) + (1 - p_S) * torch.log((1 - p_S) / (1 - q_S))
