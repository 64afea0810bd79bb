"""REINFORCE with Dr.GRPO's constant normaliser.

The loss of B records with advantages A_i and completions of any length is, with M = ``max_generation_len``:

    L = - 1/B * sum_i A_i * 1/M * sum_t w_it * log pi(token_it | context)

Dividing by the constant M instead of each completion's length prevents a preference for long answers (Liu et
al., arXiv 2503.20783). w_it is the truncated importance weight min(pi / behaviour,
``max_importance_weight``), which is held constant; in every step of an update it is that of the policy at
that step.
"""

from torch import Tensor

from sparring.learn.algorithms.token_loss import TokenLoss
from sparring.learn.batch import Tokens


class Reinforce(TokenLoss):
    """The algorithm that the module's docstring describes."""

    has_ratio = False

    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return - A log pi."""
        return -(advantage_S * logprobs_S)


class A2c(Reinforce):
    """A2C: the policy gradient with the advantages of the learner's critic (Mnih et al. 2016, arXiv
    1602.01783).
    """
