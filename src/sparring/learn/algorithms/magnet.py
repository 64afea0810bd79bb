"""Magnet: give the best reply of the moment, as far as a slowly moving copy of the policy allows.

Self-play with a plain policy gradient goes round the equilibrium. It settles if each player gives, in place
of the best reply of the moment, the reply that is best less a penalty for leaving a slowly moving policy, the
magnet rho (magnetic mirror descent, Sokota et al. 2022, arXiv 2206.05825; NashPG, Yu et al. 2025, arXiv
2510.18183). Over the legal answers to a prompt, with action values Q, this reply is

    pi' = argmax_pi  E_pi[Q] - alpha KL(pi || rho),    pi'(a) = rho(a) exp(Q(a) / alpha) / Z

A step of magnetic mirror descent goes only part of the way there from the policy pi before the update:

    pi'(a) is proportional to  (pi(a) rho(a)^(eta alpha) exp(eta Q(a)))^(1 / (1 + eta alpha))

Here pi has the probability of illegal answers divided equally among the legal ones. Without a limit of the
step, eta is infinite, and pi' the reply above. The smaller eta, the less does a single value that is far from
0 decide, and the more does the gradient resemble that of ``all_actions``.

The loss is the cross-entropy from pi' to the policy over all legal answers: their weights are pi' (see
``over_answers``, which also defines Q and rho). So answers that were not drawn have a gradient too, and
the probability of illegal ones falls.

Tied to its own past, the policy is always one reply ahead of it: an optimistic step, which converges where a
plain one circles. alpha and u are constants, in units of the advantages of the moment, and nothing is
scheduled.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from sparring.config.algorithms import MagnetSettings
from sparring.core import TrainingRecord
from sparring.learn.algorithms.over_answers import OverAnswers
from sparring.learn.batch import Batch
from sparring.learn.legal_answers import FloatArray
from sparring.learn.pace import STATE, Pace, Stride


class Magnet(OverAnswers):
    """The algorithm that the module's docstring describes."""

    settings: MagnetSettings = MagnetSettings()
    linear = False

    def __init__(self, settings: MagnetSettings | None = None) -> None:
        super().__init__(settings)
        self._pace = Pace()
        self._last: dict[int, Stride] = {}
        self._aimed: tuple[FloatArray, FloatArray] = np.zeros(0), np.zeros(0)

    def compute_others(self, batch: Batch) -> None:
        """Keep, besides the reference's log-probabilities, those of the policy before the first step."""
        super().compute_others(batch)
        if self.settings.eta is not None:
            self.keep_answer_logprobs(batch)

    def pull(self, batch: Batch) -> FloatArray:
        """Return the target of each legal answer, times how much its prompt counts; keep both."""
        self._aimed = self.target(batch), self.emphasis(batch)
        target_A, emphasis_A = self._aimed
        pull_A: FloatArray = target_A * emphasis_A
        return pull_A

    def target(self, batch: Batch) -> FloatArray:
        """Return the probability of each legal answer in the best reply within reach of the magnet."""
        legal, eta, alpha = batch.answers, self.settings.eta, self.settings.alpha
        reply_A = np.log(self.magnet(batch)) + self.values(batch) / alpha
        if eta is None:
            return legal.normalised(reply_A)
        before_A = np.log(legal.completed(self.answer_logprobs(self.adapter, batch)))
        share = eta * alpha / (1 + eta * alpha)
        return legal.normalised(share * reply_A + (1 - share) * before_A)

    def state(self) -> dict[str, Tensor]:
        """Return what other algorithms over legal answers keep, and the pace."""
        return super().state() | self._pace.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`; see :class:`BaseAlgo`."""
        has_pace = self.settings.pace is not None
        super().load_state({name: one for name, one in state.items() if name != STATE or not has_pace})
        self._pace = Pace.of(state) if has_pace else Pace()

    @property
    def rate_factor(self) -> float:
        """The factor of the pace."""
        return self._pace.factor

    def begin(self, records: list[TrainingRecord], version: int = 0) -> None:
        """Average the advantages of the whole batch, whose targets are new; see :class:`OverAnswers`."""
        super().begin(records, version)
        self._last = {}

    def measure(self, batch: Batch, logprob_A: FloatArray) -> dict[str, float]:
        """Return how far the last step went towards its targets, from the second pass of an update on."""
        if self.settings.pace is None:
            return {}
        legal, last = batch.answers, self._last.get(id(batch))
        now_A, (target_A, emphasis_A) = legal.normalised(logprob_A), self._aimed
        self._last[id(batch)] = Stride(now_A, target_A, emphasis_A * legal.visits_P[legal.prompt_of_A])
        return {} if last is None else {"progress": last.share(now_A)}

    def follow(self, metrics: Mapping[str, float]) -> None:
        """Let the learning rate follow the last step."""
        if self.settings.pace is not None and "progress" in metrics:
            self._pace.follow(metrics["progress"], self.settings.pace)
