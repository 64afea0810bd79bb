"""SAPO: a soft gate in the place of PPO's clip.

Where a clip lets a gradient through or not, a sigmoid lets less of it through the more a token's probability
has changed (Gao et al. 2025, arXiv 2511.20347). With r = pi / old, the loss of a token is

    - 4 / tau * sigmoid(tau (r - 1)) * A,

whose gradient at r = 1 is that of - r A. tau is ``tau_positive`` where A > 0 and otherwise ``tau_negative``,
which is a little larger (1 and 1.05), because to make a token less likely spreads its probability over the
many others, most of which are wrong.
"""

import torch
from torch import Tensor

from sparring.config.algorithms import SapoSettings
from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Sapo(TokenLoss):
    """The algorithm that the module's docstring describes."""

    settings: SapoSettings = SapoSettings()

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the gated loss of each token."""
        tau_S = torch.full_like(advantage_S, self.settings.tau_negative).masked_fill(
            advantage_S > 0, self.settings.tau_positive
        )
        ratio_S = torch.exp(logprobs_S - old_S)
        return -(4 / tau_S * torch.sigmoid(tau_S * (ratio_S - 1)) * advantage_S)
