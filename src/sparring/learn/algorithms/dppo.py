"""DPPO: leave out tokens whose probability has changed much, not those whose ratio has.

A ratio says little about how far a policy has moved: a token that becomes ten times as likely may go from
0.001 to 0.01, or from 0.09 to 0.9. DPPO bounds the total variation between pi and mu, of which one token
shows |pi - mu| (Qi et al. 2026, arXiv 2602.04879, the variant "binary TV"). The loss of a token is

    - m * sg[min(pi / mu, C)] * A * log pi,

where sg has no gradient and m is 0 where the last step went too far in the direction of the advantage: A > 0
and pi - mu > ``clip_high``, or A < 0 and mu - pi > ``clip_low`` (0.2 each). mu is the probability with which
the engine drew the token, so the mask bounds the distance from the engine too, and the weight pi / mu needs
no correction besides it. C is ``max_importance_weight``, 20 as in verl. The terms of the KL divergence in the
loss have no weight.
"""

import torch
from torch import Tensor

from sparring.config.algorithms import DppoSettings
from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Dppo(TokenLoss):
    """``clip_fraction`` is the share of tokens with m = 0."""

    settings: DppoSettings = DppoSettings()

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of each token."""
        change_S = torch.exp(logprobs_S.detach()) - torch.exp(tokens.behaviour_S)
        too_high_S = (advantage_S > 0) & (change_S > self.settings.clip_high)
        too_low_S = (advantage_S < 0) & (change_S < -self.settings.clip_low)
        masked_S = too_high_S | too_low_S
        self.add_metric("clip_fraction", masked_S)
        weight_S = tokens.importance_weights(logprobs_S, self.settings.max_importance_weight)
        return -(weight_S.masked_fill(masked_S, 0.0) * advantage_S * logprobs_S)
