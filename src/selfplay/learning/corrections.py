"""Corrections for tokens to which engine and learner give different probabilities.

Let w = pi(token) / mu(token), where the learner has pi and the engine drew the token with mu: an older version,
or the same weights computed differently (bfloat16, other kernels, other experts). A correction multiplies a
token's loss by a factor that has no gradient:

- ``none``: 1;
- ``tis``: min(w, C), truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly
  Brings You Off-Policy RL Training"; C = 2);
- ``mis``: w where w <= C, otherwise 0, masked importance sampling;
- ``icepop``: w where c <= w <= C, otherwise 0 (Ring team 2025; c = 0.5, C = 5);
- ``kpop``: w where the binary KL divergences between pi(token) and mu(token), in both directions, are at most
  ``threshold``, otherwise 0 (Ring team 2026; 2.0). A fixed band masks ever fewer tokens as both agree.

At the level ``sequence``, w is the product over the answer's tokens, so an answer is weighted or masked as a
whole; ``kpop`` then masks an answer if its tokens' divergences exceed the threshold in their mean.

Off-policy sequence masking (DeepSeek-V3.2, 2025) is apart from these: an answer with a negative advantage is
left out if the mean of log mu - log pi over its tokens exceeds ``opsm``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfplay.core.algorithm_names import Correction, Level

TINY = 1e-7


@dataclass(frozen=True)
class EngineCorrection:
    """A correction, with its bounds as the module names them: C, c and the thresholds."""

    kind: Correction = "tis"
    level: Level = "token"
    maximum: float = 2.0
    minimum: float = 0.5
    threshold: float = 2.0
    opsm: float | None = None

    def factors(
        self, logprobs_S: Tensor, behaviour_S: Tensor, advantage_S: Tensor, answer_S: Tensor
    ) -> Tensor:
        """Return the factor of each token's loss.

        Args:
            logprobs_S: log pi of each token.
            behaviour_S: log mu of each token.
            advantage_S: advantage of each token's answer.
            answer_S: index of each token's answer among those given.
        """
        logprobs_S = logprobs_S.detach()
        difference_S = logprobs_S - behaviour_S
        factor_S = torch.ones_like(difference_S) if self.kind == "none" else self._weights(
            difference_S, logprobs_S, behaviour_S, answer_S
        )
        if self.opsm is not None:
            too_far_S = -mean_of_answers(difference_S, answer_S) > self.opsm
            factor_S = factor_S.masked_fill(too_far_S & (advantage_S < 0), 0.0)
        return factor_S

    def _weights(
        self, difference_S: Tensor, logprobs_S: Tensor, behaviour_S: Tensor, answer_S: Tensor
    ) -> Tensor:
        whole = self.level == "sequence"
        log_weight_S = sum_of_answers(difference_S, answer_S) if whole else difference_S
        weight_S = torch.exp(log_weight_S)
        if self.kind == "tis":
            return weight_S.clamp(max=self.maximum)
        if self.kind == "mis":
            return weight_S.masked_fill(weight_S > self.maximum, 0.0)
        if self.kind == "icepop":
            return weight_S.masked_fill((weight_S < self.minimum) | (weight_S > self.maximum), 0.0)
        distance_S = torch.maximum(
            _binary_kl(logprobs_S, behaviour_S), _binary_kl(behaviour_S, logprobs_S)
        )
        if whole:
            distance_S = mean_of_answers(distance_S, answer_S)
        return weight_S.masked_fill(distance_S > self.threshold, 0.0)


def sum_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the sum over the tokens of its answer."""
    count = int(answer_S.max()) + 1 if len(answer_S) else 0
    sum_A = torch.zeros(count, dtype=values_S.dtype, device=values_S.device)
    return sum_A.index_add(0, answer_S, values_S)[answer_S]


def mean_of_answers(values_S: Tensor, answer_S: Tensor) -> Tensor:
    """Return, for each token, the mean over the tokens of its answer."""
    return sum_of_answers(values_S, answer_S) / sum_of_answers(torch.ones_like(values_S), answer_S)


def _binary_kl(log_p_S: Tensor, log_q_S: Tensor) -> Tensor:
    """Return the KL divergence between two distributions over a token and everything else."""
    p_S = log_p_S.exp().clamp(TINY, 1 - TINY)
    q_S = log_q_S.exp().clamp(TINY, 1 - TINY)
    return p_S * torch.log(p_S / q_S) + (1 - p_S) * torch.log((1 - p_S) / (1 - q_S))
