"""CISPO: clip the importance weight, not the gradient.

PPO's clip removes the gradient of a token whose probability has changed much. Such tokens are rare and often
begin a new thought, so here they keep a gradient, whose weight is bounded instead (MiniMax 2025, arXiv
2506.13585). With r = pi / old, the loss of a token is

    - sg[clip(r, 1 - ``clip_low``, 1 + ``clip_high``)] * A * log pi,

where sg has no gradient. The paper has no lower bound (``clip_low`` = 1) and chooses the upper one by
experiment; 1 + 4 = 5 is the value of TRL's recipe.
"""

import torch
from torch import Tensor

from sparring.config.algorithms import CispoSettings
from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Cispo(TokenLoss):
    """``clip_fraction`` is the share of tokens whose weight is bounded."""

    settings: CispoSettings = CispoSettings()

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of each token."""
        ratio_S = torch.exp(logprobs_S.detach() - old_S)
        weight_S = ratio_S.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        self.add_metric("clip_fraction", weight_S != ratio_S)
        return -(weight_S * advantage_S * logprobs_S)
