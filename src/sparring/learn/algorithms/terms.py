"""What losses are made of besides that of the tokens: divergences, legal answers, values, the mismatch.

Estimators of KL(pi || reference) from tokens that pi drew (Schulman 2020, "Approximating KL Divergence"),
with x = log pi(token) - log reference(token):

- ``k1``: x. Unbiased, of either sign. As a term of the loss its gradient is zero in the mean, so it belongs
  in the reward;
- ``k2``: x^2 / 2. Biased, never negative; its mean gradient is that of KL(pi || reference);
- ``k3``: exp(-x) - 1 + x. Unbiased, never negative; its mean gradient is that of KL(reference || pi), as in
  every trainer that adds it to the loss. It grows without bound where pi makes a token unlikely, so -x is
  bounded by ``MAX_LOG_RATIO``;
- ``k3+``: the value of k3 and the gradient of k2 (straight-through, as in verl), so both are right.

All of this holds for tokens that pi drew; terms of other tokens need an importance weight.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparring.config.algorithms import KLEstimator
from sparring.learn.batch import Batch, Counts, Tokens
from sparring.learn.corrections import sum_to_end
from sparring.learn.critic import Critic
from sparring.learn.legal_answers import FloatArray
from sparring.learn.trie import TreePlan

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
    """Return an array on the device of a tensor."""
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
