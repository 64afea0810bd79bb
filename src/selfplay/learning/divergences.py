"""Estimators of KL(pi || reference) from tokens that pi drew (Schulman 2020, "Approximating KL Divergence").

With x = log pi(token) - log reference(token):

- ``k1``: x. Unbiased, of either sign. As a term of the loss its gradient is zero in the mean, so it belongs
  in the reward;
- ``k2``: x^2 / 2. Biased, never negative; its mean gradient is that of KL(pi || reference);
- ``k3``: exp(-x) - 1 + x. Unbiased, never negative; its mean gradient is that of KL(reference || pi), as in
  every trainer that adds it to the loss. It grows without bound where pi makes a token unlikely, so -x is
  bounded by ``MAX_LOG_RATIO``;
- ``k3+``: the value of k3 and the gradient of k2 (straight-through, as in verl), so both are right.

All of this holds for tokens that pi drew; terms of other tokens need an importance weight.
"""

import torch
from torch import Tensor

from selfplay.core.algorithm_names import KLEstimator

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
