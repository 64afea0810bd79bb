"""All actions: the expected gradient over all legal answers, in place of that of the answers drawn.

A policy gradient knows of an answer only what its draw was worth. Where the legal answers to a prompt can be
listed and the batch holds several games of its position, their values Q are known, and the expectation over
the policy's draws can be computed (expected policy gradients, Ciosek and Whiteson 2018, arXiv 1706.05374).
What is maximised is the value less the divergence from a slowly moving policy, the magnet rho, without which
self-play goes round the equilibrium (see ``magnet``; ``over_answers`` defines Q and rho):

    J = E_pi[Q] - alpha KL(pi || rho),    pi = the policy among the legal answers

With F(a) = Q(a) - alpha log (pi(a) / rho(a)) and V = E_pi[F], the gain of an answer is A(a) = F(a) - V, and
sg[x] is x without a gradient. There are two gradients:

- ``policy``: the exact gradient of J, from the loss - sum_a sg[pi(a) A(a)] log pi(a). An answer that the
  policy hardly ever gives hardly moves, however good it has become;
- ``neurd``: the loss - sum_a sg[A(a)] y(a) with y(a) = log pi(a) - mean_b log pi(b), from which rare answers
  return as fast as others (neural replicator dynamics, Hennes et al. 2020, arXiv 1906.00190). An answer with
  y(a) beyond ``beta`` on either side is not pushed further out by its own gain: it counts as A = 0, so
  only the mean of the others' gains moves it. The divergence is part of the values, as in
  R-NaD (Perolat et al. 2022, arXiv 2206.15378, where beta is 2): beside this loss its own gradient, which has
  the factor pi(a), would be balanced in another place than where J is greatest.

Both also lose - sum_a s(a) log p(a), where p(a) is the probability of a whole answer, among all that the
model could say, P = sum_b p(b) over the n legal answers, and s(a) = p(a) + (1 - P) / n, without a gradient.
In the logits, every legal answer rises by (1 - P) / n and every illegal one c falls by p(c). (- log P would
raise a legal answer by pi(a) (1 - P): the likeliest one most, and a model that shares its weights among
prompts would soon give that one everywhere.) Since log pi(a) = log p(a) - log P, where the sum of pi(a) A(a)
and the mean of y(a) are 0, all is a weighted sum of the log p(a), with the weights s(a) + pi(a) A(a) or
s(a) + A(a) - mean_b A(b), where the answers that ``beta`` holds back have A = 0.

The weights of ``magnet`` are pi(a) exp(F(a) / alpha) / Z, to first order pi(a) + pi(a) A(a) / alpha, where s
is pi if all answers are legal. Those here depend on the policy's present probabilities, which are those of
the pass whose gradient is taken.
"""

import numpy as np
from torch import Tensor

from sparring.config.algorithms import AllActionsSettings
from sparring.learn.algorithms.base import AnswerWeights
from sparring.learn.algorithms.over_answers import OverAnswers
from sparring.learn.batch import Batch
from sparring.learn.legal_answers import BoolArray, FloatArray, LegalAnswers


class AllActions(OverAnswers):
    """The algorithm that the module's docstring describes."""

    settings: AllActionsSettings = AllActionsSettings()
    linear = True

    def weights_of(self, batch: Batch) -> AnswerWeights:
        """Weigh the answers in each plan by the policy's log-probabilities in the same pass.

        Plans that divide the answers to a prompt, mostly of conversations, have another pass before.
        """
        legal, first = batch.answers, batch.num_answers
        fixed_A, emphasis_A = self._value_of_reply(batch), self.emphasis(batch)
        divided_A = legal.divided(batch.plans, first)
        before_A = self._logprobs_of_divided(batch, divided_A)

        def weights_in(index: int, logprobs_C: Tensor) -> FloatArray:
            own = logprobs_C.detach().double().cpu().numpy()
            logprob_A = np.where(divided_A, before_A, legal.sums([batch.plans[index]], [own], first))
            weight_A: FloatArray = self._weights(legal, logprob_A, fixed_A) * emphasis_A
            return weight_A

        return weights_in

    def _logprobs_of_divided(self, batch: Batch, divided_A: BoolArray) -> FloatArray:
        first = batch.num_answers
        plans = [
            plan for plan in batch.plans if divided_A[plan.sample_S[plan.sample_S >= first] - first].any()
        ]
        return batch.answers.sums(plans, self.logprobs_of(self.adapter, plans), first)

    def _value_of_reply(self, batch: Batch) -> FloatArray:
        """Return Q_A + alpha log rho_A, the part of F_A that does not depend on the policy."""
        fixed_A: FloatArray = self.values(batch) + self.settings.alpha * np.log(self.magnet(batch))
        return fixed_A

    def _weights(self, legal: LegalAnswers, logprob_A: FloatArray, fixed_A: FloatArray) -> FloatArray:
        pi_A = legal.normalised(logprob_A)
        log_pi_A = np.log(np.maximum(pi_A, 1e-300))
        value_A = fixed_A - self.settings.alpha * log_pi_A
        gain_A = value_A - legal.totals(pi_A * value_A)
        completed_A = legal.completed(logprob_A)
        if self.settings.gradient == "policy":
            return completed_A + pi_A * gain_A
        return completed_A + self._neurd(legal, log_pi_A, gain_A)

    def _neurd(self, legal: LegalAnswers, log_pi_A: FloatArray, gain_A: FloatArray) -> FloatArray:
        uniform_A = legal.uniform_reference()
        centred_A = log_pi_A - legal.totals(uniform_A * log_pi_A)
        outwards_A = (np.abs(centred_A) > self.settings.beta) & (centred_A * gain_A > 0)
        push_A = np.where(outwards_A, 0.0, gain_A)
        force_A: FloatArray = push_A - legal.totals(uniform_A * push_A)
        return force_A
