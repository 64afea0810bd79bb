"""BaseAlgo: from training records to gradients, over prefix trees.

An algorithm sees one flat array of sampled tokens and need not know that they were packed: the gather from
distinct predictions to sampled tokens makes a token's gradient the sum over the samples that pass through it.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from selfplay.core import TrainingRecord
from selfplay.learning.batch import Batch, Tokens, pack
from selfplay.learning.logprobs import plan_logprobs
from selfplay.learning.policy import BASE, TRAINED, PolicyModel
from selfplay.learning.trie import TreePlan


class BaseAlgo(ABC):
    """Abstract interface of policy-gradient algorithms.

    Regulariser and KL are means over records, divided like the loss by the constant normaliser.

    Args:
        regulariser: ``none``, ``uniform`` or ``base``: cross-entropy from the uniform distribution, or from
            the untrained model's, over legal answers (see ``legal_answers``).
        kl_weight: weight of KL(pi || untrained model) on the sampled tokens, by the estimator
            r - 1 - log r with r = base / pi (Schulman 2020), which is unbiased and never negative. Its mean
            gradient is that of KL(untrained model || pi), as in every trainer that puts it in the loss.
        max_importance_weight: bound of the weights of off-policy tokens.
    """

    def __init__(
        self, regulariser: str = "none", kl_weight: float = 0.0, max_importance_weight: float = 2.0
    ) -> None:
        self.regulariser = regulariser
        self.kl_weight = kl_weight
        self.max_importance_weight = max_importance_weight

    def initialize(
        self,
        policy: PolicyModel,
        max_generation_len: int,
        max_train_len: int | None = None,
        max_batch_tokens: int = 2048,
        temperature: float = 1.0,
        adapter: str = TRAINED,
    ) -> None:
        """Tell the algorithm what it trains.

        Args:
            policy: the model.
            max_generation_len: the loss's constant normaliser M, in tokens.
            max_train_len: most tokens of prompt and completion; completions are cut there.
            max_batch_tokens: most tokens fed in one forward pass.
            temperature: at which the records' tokens were drawn.
            adapter: name of the policy that gets the gradients.
        """
        self.policy = policy
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self.max_batch_tokens = max_batch_tokens
        self.temperature = temperature
        self.adapter = adapter

    @abstractmethod
    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return this plan's share of the loss; the shares of all plans add up to the batch's loss."""

    def prepare_batch(self, records: list[TrainingRecord], version: int | None = None) -> Batch:
        """Pack records. ``version`` is the policy version that learns; ``None`` takes all as on-policy."""
        return pack(
            records,
            version=version,
            max_train_len=self.max_train_len,
            max_batch_tokens=self.max_batch_tokens,
            with_answers=self.regulariser != "none",
        )

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the whole batch into the adapter; returns metrics.

        ``mismatch`` is the mean absolute difference between the log-probabilities at which on-policy tokens
        were drawn and those of this model now; it should be rounding.
        """
        base = self._base_logprobs(batch)
        reference_A = self._reference(batch, base)
        loss_sum, kl_sum, difference_sum, fresh, seen = 0.0, 0.0, 0.0, 0, []
        with self.policy.adapter(self.adapter):
            for index, plan in enumerate(batch.plans):
                logprobs_C = plan_logprobs(self.policy, plan, self.temperature)
                logprobs_S = logprobs_C[self._tensor(plan.prediction_S)]
                own_S = self._tensor(plan.sample_S < batch.num_records)
                tokens = batch.tokens(plan, self.policy.device)
                loss = self.loss(logprobs_S[own_S], tokens)
                if len(batch.answers):
                    weight_S = batch.answers.token_weights(plan, reference_A, batch.num_records)
                    cross_entropy = -(self._tensor(weight_S.astype(np.float32)) * logprobs_S).sum()
                    loss = loss + regulariser_weight * cross_entropy / self.max_generation_len
                if self.kl_weight:
                    base_S = self._tensor(base[index][plan.prediction_S].astype(np.float32))
                    kl = self._kl(logprobs_S[own_S], base_S[own_S]) / batch.num_records
                    loss = loss + self.kl_weight * kl
                    kl_sum += float(kl.detach())
                torch.autograd.backward(loss)
                loss_sum += float(loss.detach())
                fresh_S = ~tokens.stale_S
                difference_S = (logprobs_S[own_S].detach() - tokens.behaviour_S).abs()
                difference_sum += float(difference_S[fresh_S].sum())
                fresh += int(fresh_S.sum())
                seen.append(logprobs_C.detach().double().cpu().numpy())
        metrics = {
            "loss": loss_sum,
            "mismatch": difference_sum / max(fresh, 1),
            "packed_tokens": float(batch.packed_tokens),
            "separate_tokens": float(batch.separate_tokens),
        }
        if self.kl_weight:
            metrics["kl_to_base"] = kl_sum
        if len(batch.answers):
            logprob_A = batch.answers.sums(batch.plans, seen, batch.num_records)
            metrics |= batch.answers.metrics(logprob_A)
        return metrics

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.policy.device)

    def _kl(self, logprobs_S: Tensor, base_S: Tensor) -> Tensor:
        log_ratio_S = base_S - logprobs_S
        return (torch.exp(log_ratio_S) - 1 - log_ratio_S).sum() / self.max_generation_len

    def _base_logprobs(self, batch: Batch) -> list[np.ndarray]:
        """The untrained model's logprobs_C of every plan, if anything needs them."""
        if self.regulariser != "base" and not self.kl_weight:
            return []
        with torch.no_grad(), self.policy.adapter(BASE):
            return [self._plan_array(plan) for plan in batch.plans]

    def _plan_array(self, plan: TreePlan) -> np.ndarray:
        logprobs_C: np.ndarray = plan_logprobs(self.policy, plan, self.temperature).double().cpu().numpy()
        return logprobs_C

    def _reference(self, batch: Batch, base: list[np.ndarray]) -> np.ndarray:
        if self.regulariser == "base":
            return batch.answers.normalised(batch.answers.sums(batch.plans, base, batch.num_records))
        return batch.answers.uniform_reference()
