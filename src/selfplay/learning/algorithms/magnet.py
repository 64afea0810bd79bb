"""Magnet: answer best against the running average of the policy, as far as the average allows.

Self-play with a plain policy gradient goes round the equilibrium. It settles if each player gives, in place
of the best reply of the moment, the reply that is best less a penalty for leaving a slowly moving policy, the
magnet rho (magnetic mirror descent, Sokota et al. 2022, arXiv 2206.05825; NashPG, Yu et al. 2025, arXiv
2510.18183). Over the legal answers to a prompt, with action values Q (see ``action_values``), this reply is

    pi' = argmax_pi  E_pi[Q] - alpha KL(pi || rho),    pi'(a) = rho(a) exp(Q(a) / alpha) / Z

The loss is the cross-entropy from pi' to the policy over all legal answers, at every prompt of the batch,
weighted by the share of answers to that prompt. So answers that were not drawn have a gradient too, and the
probability of illegal ones falls.

The magnet is the average of the policy's adapter that is evaluated and kept, mixed with a small share u of
the uniform distribution. So no answer becomes impossible that was never found to be bad, however rarely its
position is reached. With its own average as the magnet, the policy is always one reply ahead of its past: an
optimistic step, which converges where a plain one circles.

alpha and u are constants, and nothing is scheduled. Q has no unit, because it is divided by the root mean
square of the batch's advantages.
"""

import numpy as np
from torch import Tensor

from selfplay.core import SelfplayError, TrainingRecord
from selfplay.core.adapters import average_of
from selfplay.learning.action_values import ActionValues
from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.batch import Batch, Tokens
from selfplay.learning.legal_answers import FloatArray


class Magnet(BaseAlgo):
    """The algorithm that the module's docstring describes. Its learner must keep an average.

    Args:
        alpha: weight of the divergence from the magnet, in units of the advantages' root mean square.
        uniform: u, the share of the uniform distribution in the magnet, 0 to 1; above 0.
    """

    average_warmup = 1
    """The magnet is slower than the policy from the beginning; otherwise the policy runs ahead of itself."""

    def __init__(self, alpha: float = 0.8, uniform: float = 0.05) -> None:
        super().__init__(regulariser="magnet")
        self.alpha = alpha
        self.uniform = uniform
        self._values = ActionValues()

    def begin(self, records: list[TrainingRecord]) -> None:
        """Average the advantages of the whole batch.

        Raises:
            SelfplayError: no answer has legal answers beside it, so there is nothing to learn.
        """
        if not any(answer.alternatives for record in records for answer in record.answers):
            raise SelfplayError(
                "magnet learns from legal answers, and this batch has none; "
                "choose another learning.algorithm, such as reinforce"
            )
        super().begin(records)
        self._values = ActionValues.of(records)

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return 0: all that is learned is in the target of the legal answers."""
        return 0.0 * logprobs_S.sum()

    def update(self, batch: Batch, regulariser_weight: float = 1.0) -> dict[str, float]:
        """Accumulate the gradients of the cross-entropy from the target; see :class:`BaseAlgo`."""
        metrics = super().update(batch, float(self.max_generation_len))
        return metrics | {"value_scale": self._values.scale}

    def compute_base(self, batch: Batch) -> None:
        """Set ``batch.base``, the average's log-probabilities, once for a batch."""
        if not batch.base:
            batch.base = self.logprobs_of(average_of(self.adapter), batch)

    def reference(self, batch: Batch) -> FloatArray:
        """Return the target of each legal answer: the best reply within reach of the magnet."""
        legal = batch.answers
        average_A = legal.normalised(legal.sums(batch.plans, batch.base, batch.num_answers))
        magnet_A = (1 - self.uniform) * average_A + self.uniform * legal.uniform_reference()
        return legal.normalised(np.log(magnet_A) + self._values.of_answers(legal) / self.alpha)
