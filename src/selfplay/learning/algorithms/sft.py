"""Supervised fine-tuning: make the answers of a data set likelier.

A conversation contributes one sample for each assistant message that is trained on: the messages before it
are the prompt, and its tokens, with the one that ends the turn, are the completion. The loss of a mini-batch
is the mean negative log-likelihood over all completion tokens of all its conversations:

    L = - 1/N * sum_i sum_t log pi(token_it | context),    N = the number of tokens t over all samples i

Every token has the same weight, so a long conversation counts for more than a short one. This is the loss of
TRL 1.16's ``SFTTrainer`` with ``assistant_only_loss``, gradient accumulation included.

Later prompts of a conversation contain the earlier ones, and conversations of one transcript share most of
their messages. In a prefix tree each is computed once.
"""

from collections.abc import Sequence

import torch

from selfplay.learning.algorithms.packed_loss import PackedLoss, Sample
from selfplay.learning.logprobs import plan_scores

AT_ONCE = 256
"""Number of conversations of an evaluation that are packed together."""


class Sft(PackedLoss[list[Sample]]):
    """The algorithm that the module's docstring describes. An example is the samples of a conversation."""

    def update(self, examples: Sequence[list[Sample]]) -> dict[str, float]:
        """Accumulate the gradients of one mini-batch; see :meth:`metrics` for what is returned."""
        samples = [sample for example in examples for sample in example]
        number = sum(len(sample.completion) for sample in samples)
        nll, hits = self._sums(samples, divisor=number)
        return self.metrics(nll, hits, number)

    def evaluate(self, examples: Sequence[list[Sample]]) -> dict[str, float]:
        """Return the metrics over any number of conversations, without gradients."""
        nll, hits, number = 0.0, 0.0, 0
        with torch.no_grad():
            for first in range(0, len(examples), AT_ONCE):
                samples = [sample for one in examples[first : first + AT_ONCE] for sample in one]
                more_nll, more_hits = self._sums(samples, divisor=0)
                nll, hits = nll + more_nll, hits + more_hits
                number += sum(len(sample.completion) for sample in samples)
        return self.metrics(nll, hits, number)

    def metrics(self, nll: float, hits: float, number: int) -> dict[str, float]:
        """Return ``loss`` and ``accuracy``, the share of tokens that were the likeliest ones."""
        return {"loss": nll / number, "accuracy": hits / number}

    def _sums(self, samples: Sequence[Sample], divisor: int) -> tuple[float, float]:
        """Return sums over tokens; with a ``divisor``, accumulate the gradient of nll / ``divisor``."""
        nll, hits = 0.0, 0.0
        with self.policy.adapter(self.adapter):
            for plan in self.plans(samples):
                logprobs_C, hits_C = plan_scores(self.policy, plan, self.limits)
                prediction_S = self.tensor(plan.prediction_S)
                total = -logprobs_C[prediction_S].sum()
                if divisor:
                    torch.autograd.backward(total / divisor)
                nll += float(total.detach())
                hits += float(hits_C[prediction_S].sum())
        return nll, hits
