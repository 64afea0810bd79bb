"""Magnet: give the best reply of the moment, as far as a slowly moving copy of the policy allows.

Self-play with a plain policy gradient goes round the equilibrium. It settles if each player gives, in place
of the best reply of the moment, the reply that is best less a penalty for leaving a slowly moving policy, the
magnet rho (magnetic mirror descent, Sokota et al. 2022, arXiv 2206.05825; NashPG, Yu et al. 2025, arXiv
2510.18183). Over the legal answers to a prompt, with action values Q (see ``action_values``), this reply is

    pi' = argmax_pi  E_pi[Q] - alpha KL(pi || rho),    pi'(a) = rho(a) exp(Q(a) / alpha) / Z

The loss is the cross-entropy from pi' to the policy over all legal answers, at every prompt of the batch,
weighted by the share of answers to that prompt. So answers that were not drawn have a gradient too, and the
probability of illegal ones falls.

The magnet is the reference that follows the policy (see ``following``), a running average of its weights or a
copy of them every K updates, mixed with a small share u of the uniform distribution. So no answer becomes
impossible that was never found to be bad, however rarely its position is reached. Tied to its own past, the
policy is always one reply ahead of it: an optimistic step, which converges where a plain one circles.

alpha and u are constants, and nothing is scheduled. Q has no unit, because it is divided by the root mean
square of the batch's advantages.
"""

import numpy as np
from torch import Tensor

from selfplay.core import SelfplayError, TrainingRecord
from selfplay.learning.action_values import ActionValues
from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.batch import Batch, Tokens
from selfplay.learning.legal_answers import FloatArray


class Magnet(BaseAlgo):
    """The algorithm that the module's docstring describes. Its learner must have a reference.

    Args:
        alpha: weight of the divergence from the magnet, in units of the advantages' root mean square.
        uniform: u, the share of the uniform distribution in the magnet, 0 to 1; above 0.
    """

    def __init__(self, alpha: float = 0.8, uniform: float = 0.05) -> None:
        super().__init__(regulariser="magnet")
        self.alpha = alpha
        self.uniform = uniform
        self._values = ActionValues()

    @property
    def compared_with(self) -> set[str]:
        """The magnet is the reference that follows the policy."""
        return {"reference"}

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

    def pull(self, batch: Batch) -> FloatArray:
        """Return the target of each legal answer: the best reply within reach of the magnet."""
        legal, reference_A = batch.answers, self.distribution_of("reference", batch)
        magnet_A = (1 - self.uniform) * reference_A + self.uniform * legal.uniform_reference()
        return legal.normalised(np.log(magnet_A) + self._values.of_answers(legal) / self.alpha)
