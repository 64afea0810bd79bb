"""Magnet: give the best reply of the moment, as far as a slowly moving copy of the policy allows.

Self-play with a plain policy gradient goes round the equilibrium. It settles if each player gives, in place
of the best reply of the moment, the reply that is best less a penalty for leaving a slowly moving policy, the
magnet rho (magnetic mirror descent, Sokota et al. 2022, arXiv 2206.05825; NashPG, Yu et al. 2025, arXiv
2510.18183). Over the legal answers to a prompt, with action values Q, this reply is

    pi' = argmax_pi  E_pi[Q] - alpha KL(pi || rho),    pi'(a) = rho(a) exp(Q(a) / alpha) / Z

The loss is the cross-entropy from pi' to the policy over all legal answers: their weights are pi' (see
``magnetic``, which also defines Q and rho). So answers that were not drawn have a gradient too, and the
probability of illegal ones falls.

Tied to its own past, the policy is always one reply ahead of it: an optimistic step, which converges where a
plain one circles. alpha and u are constants, and nothing is scheduled.
"""

import numpy as np

from selfplay.learning.algorithms.magnetic import Magnetic
from selfplay.learning.batch import Batch
from selfplay.learning.legal_answers import FloatArray


class Magnet(Magnetic):
    """The algorithm that the module's docstring describes; see :class:`Magnetic` for its arguments."""

    name = "magnet"

    def __init__(self, alpha: float = 0.8, uniform: float = 0.05) -> None:
        super().__init__(alpha, uniform)

    def pull(self, batch: Batch) -> FloatArray:
        """Return the target of each legal answer: the best reply within reach of the magnet."""
        return batch.answers.normalised(np.log(self.magnet(batch)) + self.values(batch) / self.alpha)
