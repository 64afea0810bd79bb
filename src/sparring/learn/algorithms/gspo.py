"""GSPO: PPO's clip for whole answers.

A reward belongs to an answer, and so does the ratio that is clipped, the geometric mean of its tokens':

    s = (pi(answer) / old(answer)) ** (1 / T) = exp(mean over tokens of log pi - log old)

(Zheng et al. 2025, arXiv 2507.18071). In mixtures of experts, where single tokens change their experts, s
changes far less than the tokens' ratios. The loss of each of the answer's tokens is

    - min(s_t A, clip(s_t, 1 - ``clip_low``, 1 + ``clip_high``) A),    s_t = sg[s] * pi / sg[pi],

where sg has no gradient; s_t has the value of s, and the gradient of the answer's mean loss is that with s.
The bounds are those of section 5.1, 3e-4 and 4e-4, since a mean of many tokens hardly moves. The mean over an
answer's tokens is the default aggregation here.
"""

import torch
from torch import Tensor

from sparring.config.algorithms import GspoSettings
from sparring.learn.algorithms.terms import mean_of_answers
from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Gspo(TokenLoss):
    """``clip_fraction`` is the share of tokens whose gradient a clip removes."""

    settings: GspoSettings = GspoSettings()

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the clipped loss of each token."""
        log_s_S = mean_of_answers(logprobs_S.detach() - old_S, tokens.answer_S)
        ratio_S = torch.exp(log_s_S + logprobs_S - logprobs_S.detach())
        bounded_S = ratio_S.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        gain_S = torch.minimum(ratio_S * advantage_S, bounded_S * advantage_S)
        self.add_metric("clip_fraction", gain_S < ratio_S * advantage_S)
        return -gain_S
