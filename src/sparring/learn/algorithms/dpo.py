"""Direct preference optimisation: prefer one answer to another, as far as a reference allows.

With log pi(y | x), the sum of the log-probabilities of an answer's tokens, the one that ends the turn
included, the loss is the mean over the pairs of a mini-batch (Rafailov et al. 2023, "Direct Preference
Optimization", equation 7), as in TRL 1.16's ``DPOTrainer`` with ``loss_type="sigmoid"``:

    d = [log pi(y+ | x) - log ref(y+ | x)] - [log pi(y- | x) - log ref(y- | x)]
    L = mean of -log sigmoid(beta * d)

The reference is the adapter before its first step: there is no second model. Its log-probabilities are
computed once, and stand in the records where those of the draw stand in other records.

A pair may be split over the plans into which a large tree is cut. For such plans, the log-probabilities are
first computed without a gradient, and each plan's backward pass sees the other plans' part as a constant. The
gradients of the plans add up to that of the batch, because the derivative of a pair's loss with respect to a
token depends on the others only through d.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from sparring.core import TrainingRecord
from sparring.learn.algorithms.sft import GivenAnswers
from sparring.learn.batch import Batch, Tokens


class Dpo(GivenAnswers):
    """Direct preference optimisation. Records are pairs: preferred, rejected, preferred, rejected, ...

    An answer's reward is beta * log(pi / reference). ``accuracy`` is the share of pairs whose preferred
    answer has the higher one, ``reward_margin`` the mean difference.
    """

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def reference(self, records: list[TrainingRecord]) -> NDArray[np.float32]:
        """Return the log-probability of every token of all answers by the present adapter, in one row."""
        return np.concatenate([self._logprobs(batch) for batch in self.batches(records)])

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the mean loss over a mini-batch's pairs; return its metrics."""
        self.log_ratio_A = torch.from_numpy(self._of_split_pairs(batch)).to(self.policy.device)
        metrics = super().update(batch, regulariser_weight)
        return metrics | self._metrics(self.log_ratio_A.double().cpu().numpy())

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the losses of the pairs that have an answer in one plan, over the number of all pairs."""
        zeros_A = torch.zeros_like(self.log_ratio_A)
        own_A = zeros_A.index_add(0, tokens.sample_S, logprobs_S - tokens.behaviour_S)
        is_here_A = zeros_A.index_fill(0, tokens.sample_S, 1.0) > 0
        log_ratio_A = torch.where(is_here_A, own_A, self.log_ratio_A)
        self.log_ratio_A = log_ratio_A.detach()
        log_ratio_P2 = log_ratio_A.view(-1, 2)
        loss_P = -logsigmoid(self.beta * (log_ratio_P2[:, 0] - log_ratio_P2[:, 1]))
        return loss_P[is_here_A.view(-1, 2).any(dim=1)].sum() / len(loss_P)

    def evaluate(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Return the metrics over any number of pairs."""
        found = [
            np.add.reduceat(self._logprobs(batch).astype(np.float64) - batch.behaviour, batch.start_R)
            for batch in self.batches(records)
        ]
        return self._metrics(np.concatenate(found))

    def _logprobs(self, batch: Batch) -> NDArray[np.float32]:
        self.keep_logprobs(batch)
        return batch.old

    def _of_split_pairs(self, batch: Batch) -> NDArray[np.float32]:
        """Return log_ratio_A of the answers in plans that have only one answer of a pair; 0 for others."""
        answers = [np.unique(plan.sample_S) for plan in batch.plans]
        count_P = np.bincount(np.concatenate([np.unique(own // 2) for own in answers]))
        split = [
            plan for plan, own in zip(batch.plans, answers, strict=True) if (count_P[own // 2] > 1).any()
        ]
        log_ratio_A = np.zeros(batch.num_answers)
        for plan, logprobs_C in zip(split, self.logprobs_of(self.adapter, split), strict=True):
            difference_S = logprobs_C[plan.prediction_S] - batch.behaviour[batch.places(plan)]
            np.add.at(log_ratio_A, plan.sample_S, difference_S)
        return log_ratio_A.astype(np.float32)

    def _metrics(self, log_ratio_A: NDArray[np.float64]) -> dict[str, float]:
        reward_P2 = self.beta * log_ratio_A.reshape(-1, 2)
        margin_P = reward_P2[:, 0] - reward_P2[:, 1]
        return {
            "loss": float(np.logaddexp(0.0, -margin_P).mean()),
            "accuracy": float((margin_P > 0).mean()),
            "reward_preferred": float(reward_P2[:, 0].mean()),
            "reward_rejected": float(reward_P2[:, 1].mean()),
            "reward_margin": float(margin_P.mean()),
        }


def with_reference(records: list[TrainingRecord], logprobs_T: NDArray[np.float32]) -> list[TrainingRecord]:
    """Return records with the reference's log-probabilities of their tokens."""
    ends = np.cumsum([len(record.completion_token_ids) for record in records])
    parts = np.split(logprobs_T, ends[:-1])
    return [replace(one, logprobs=own.tolist()) for one, own in zip(records, parts, strict=True)]
