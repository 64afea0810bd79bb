"""REINFORCE with Dr.GRPO's constant normaliser.

For B records with advantages A_i and completions of any length, and M = ``max_generation_len``:

    L = - 1/B * sum_i A_i * 1/M * sum_t w_it * log pi(token_it | context)

Dividing by the constant M instead of each completion's length keeps long answers from being favoured (Liu et
al., arXiv 2503.20783). There is no baseline here: that is the reward transforms' work. w_it is 1 for tokens
drawn by the version that learns; for older versions it is the truncated importance weight
min(pi / behaviour, ``max_importance_weight``), held constant.
"""

from torch import Tensor

from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.batch import Tokens


class Reinforce(BaseAlgo):
    """See the module."""

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the records' loss in this plan, a scalar."""
        weight_S = tokens.importance_weights(logprobs_S, self.max_importance_weight)
        return -(tokens.advantage_S * weight_S * logprobs_S).sum() / self.max_generation_len
