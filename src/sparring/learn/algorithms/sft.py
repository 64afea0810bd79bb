"""Supervised fine-tuning: make given answers likelier.

A conversation contributes one answer for each assistant message that is trained on: the messages before it
are the prompt, and its tokens, with the one that ends the turn, are the completion. The loss of a mini-batch
is the mean negative log-likelihood over all completion tokens of all its conversations,

    L = - 1/N * sum_i sum_t log pi(token_it | context),    N = the number of tokens t over all answers i

as in TRL 1.16's ``SFTTrainer`` with ``assistant_only_loss``, gradient accumulation included.
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from sparring.core import TrainingRecord
from sparring.learn.algorithms.base import BaseAlgo
from sparring.learn.batch import Batch, Tokens
from sparring.learn.logprobs import plan_outputs

AT_ONCE = 256
"""Number of answers that are packed together where no gradient limits it."""


class GivenAnswers(BaseAlgo):
    """Base class of losses on answers that were given as text, and not drawn by the policy."""

    squares_decay = 0.999

    @abstractmethod
    def evaluate(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Return the metrics of an update over any number of records, without gradients."""

    def prepare_batch(self, records: list[TrainingRecord], version: int | None = None) -> Batch:
        """Pack records, in their order."""
        batch = super().prepare_batch(records, version)
        batch.measured = True
        return batch

    def batches(self, records: list[TrainingRecord]) -> Iterator[Batch]:
        """Pack any number of records, ``AT_ONCE`` at a time."""
        for first in range(0, len(records), AT_ONCE):
            yield self.prepare_batch(records[first : first + AT_ONCE])


class Sft(GivenAnswers):
    """Supervised fine-tuning. ``accuracy`` is the share of tokens that were the likeliest ones."""

    counts_hits = True

    def begin(self, records: list[TrainingRecord], version: int = 0) -> None:
        """Count the tokens."""
        super().begin(records, version)
        self.num_tokens = sum(len(record.completion_token_ids) for record in records)

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return - sum log pi / N over one plan's tokens."""
        return -logprobs_S.sum() / self.num_tokens

    def evaluate(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Return ``loss`` and ``accuracy`` over any number of answers."""
        nll = hits = 0.0
        number = 0
        with torch.no_grad(), self.policy.adapter(self.adapter):
            for batch in self.batches(records):
                number += batch.counts.tokens
                for plan in batch.plans:
                    found = plan_outputs(self.policy, plan, self.limits, hits=True)
                    nll -= float(self.gathered(found.logprobs_C, plan).sum())
                    if found.hits_C is not None:
                        hits += float(self.gathered(found.hits_C, plan).sum())
        return {"loss": nll / number, "accuracy": hits / number}
