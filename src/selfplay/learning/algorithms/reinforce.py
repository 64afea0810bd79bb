"""REINFORCE with Dr.GRPO's constant normaliser.

The loss of B records with advantages A_i and completions of any length is, with M = ``max_generation_len``:

    L = - 1/B * sum_i A_i * 1/M * sum_t w_it * log pi(token_it | context)

Dividing by the constant M instead of each completion's length prevents a preference for long answers (Liu et
al., arXiv 2503.20783). The loss has no baseline of its own; the reward transforms subtract one. w_it is the
truncated importance weight min(pi / behaviour, ``max_importance_weight``), which is held constant; see
``Tokens.importance_weights``.
"""

from torch import Tensor

from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.batch import Tokens


class Reinforce(BaseAlgo):
    """The algorithm that the module's docstring describes."""

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of the records in one plan, a scalar."""
        weight_S = tokens.importance_weights(logprobs_S, self.max_importance_weight)
        return -(tokens.advantage_S * weight_S * logprobs_S).sum() / self.max_generation_len
