"""PPO's clipped objective, with clip-higher and dual clip.

A step may raise the probability of a good token and lower that of a bad one only so far, so that several
steps can use one batch. With r = pi / old, the loss of a token is

    - min(r A, clip(r, 1 - ``clip_low``, 1 + ``clip_high``) A)

(Schulman et al. 2017, arXiv 1707.06347, equation 7; both bounds 0.2). A higher upper bound leaves unlikely
tokens more room to grow, which keeps the entropy up: 0.28 in DAPO (Yu et al. 2025, arXiv 2503.14476). This
minimum has no bound where A < 0 and r is large. With ``dual_clip`` = c > 1 the loss of such a token is at
most - c A (Ye et al. 2020, arXiv 1912.09729; c = 3).
"""

import torch
from torch import Tensor

from sparring.config.algorithms import PpoSettings
from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Ppo(TokenLoss):
    """``clip_fraction`` is the share of tokens whose gradient a clip removes."""

    settings: PpoSettings = PpoSettings()

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the clipped loss of each token."""
        dual_clip, ratio_S = self.settings.dual_clip, torch.exp(logprobs_S - old_S)
        bounded_S = ratio_S.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        gain_S = torch.minimum(ratio_S * advantage_S, bounded_S * advantage_S)
        clipped_S = gain_S < ratio_S * advantage_S
        if dual_clip is not None:
            least_S = torch.where(advantage_S < 0, dual_clip * advantage_S, gain_S)
            clipped_S = clipped_S | (gain_S < least_S)
            gain_S = torch.maximum(gain_S, least_S)
        self.add_metric("clip_fraction", clipped_S)
        return -gain_S
