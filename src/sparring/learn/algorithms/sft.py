"""Supervised fine-tuning: make the answers of a data set likelier.

A conversation contributes one answer for each assistant message that is trained on: the messages before it
are the prompt, and its tokens, with the one that ends the turn, are the completion. The loss of a mini-batch
is the mean negative log-likelihood over all completion tokens of all its conversations:

    L = - 1/N * sum_i sum_t log pi(token_it | context),    N = the number of tokens t over all answers i

Every token has the same weight, so a long conversation counts for more than a short one. This is the loss of
TRL 1.16's ``SFTTrainer`` with ``assistant_only_loss``, gradient accumulation included.

Later prompts of a conversation contain the earlier ones, and conversations of one transcript share most of
their messages. In a prefix tree each is computed once.
"""

import torch
from torch import Tensor

from sparring.core import TrainingRecord
from sparring.learn.algorithms.given_answers import GivenAnswers
from sparring.learn.batch import Tokens
from sparring.learn.logprobs import plan_outputs


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
