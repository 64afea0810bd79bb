"""BaseAlgo: compute gradients from training records over prefix trees.

An algorithm sees a flat array of sampled tokens and does not need to know that they are packed: because of
the gather from distinct predictions to sampled tokens, a token's gradient is the sum over the samples that
contain it.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from selfplay.core import TrainingRecord
from selfplay.learning.attention_choice import learner_limits
from selfplay.learning.batch import Batch, Tokens, pack
from selfplay.learning.logprobs import plan_logprobs
from selfplay.learning.policy import BASE, TRAINED, PolicyModel
from selfplay.learning.trie import TreePlan

MAX_LOG_RATIO = 2.6
"""Above this a token's KL estimate stays at 9.9. verl bounds it at 10 (``low_var_kl``, ``core_algos.py``)."""


class BaseAlgo(ABC):
    """Abstract interface of policy-gradient algorithms.

    The regulariser and the KL divergence are means over answers and, like the loss, divided by the constant
    normaliser.

    Args:
        regulariser: ``none``, ``uniform`` or ``base``: cross-entropy from the uniform distribution, or from
            the untrained model's, over legal answers (see ``legal_answers``).
        kl_weight: weight of KL(pi || untrained model) on the sampled tokens, with the estimator
            r - 1 - log r where r = base / pi (Schulman 2020), which is unbiased and never negative. Its mean
            gradient is that of KL(untrained model || pi), as in every trainer that adds it to the loss.
            Both statements hold for tokens that pi drew; the terms of other tokens carry the same importance
            weight as their loss. The estimate grows with r without bound, so log r is clamped to
            ``MAX_LOG_RATIO``.
        max_importance_weight: upper bound of the importance weights; see ``Tokens.importance_weights``.
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
        adapter: str = TRAINED,
    ) -> None:
        """Set the model to train and the limits of a batch.

        Args:
            policy: the model.
            max_generation_len: the loss's constant normaliser M, in tokens.
            max_train_len: maximum number of tokens of prompt and completion; longer completions are cut.
            max_batch_tokens: maximum number of tokens in one forward pass.
            adapter: name of the policy that receives the gradients.
        """
        self.policy = policy
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self.adapter = adapter
        self.limits = learner_limits(policy, adapter, max_batch_tokens)

    @abstractmethod
    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return one plan's part of the loss; the parts of all plans add up to the batch's loss."""

    def prepare_batch(self, records: list[TrainingRecord], version: int | None = None) -> Batch:
        """Pack records. ``version`` is the policy version that learns; ``None`` treats all as on-policy."""
        return pack(
            records,
            version=version,
            max_train_len=self.max_train_len,
            with_answers=self.regulariser != "none",
        )

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the whole batch into the adapter and return metrics.

        ``mismatch`` is the mean absolute difference between the log-probabilities with which on-policy tokens
        were drawn and those of this model now; it should be no more than rounding. ``stale_mismatch`` is the
        same for tokens of older versions, so it includes the effect of the updates since. Each is
        missing if the batch has no such tokens.
        """
        base = self._base_logprobs(batch)
        reference_A = self._reference(batch, base)
        sums, seen = defaultdict[str, float](float), []
        with self.policy.adapter(self.adapter):
            for index, plan in enumerate(batch.plans):
                logprobs_C = plan_logprobs(self.policy, plan, limits=self.limits)
                logprobs_S = logprobs_C[self._tensor(plan.prediction_S)]
                own_S = self._tensor(plan.sample_S < batch.num_answers)
                tokens = batch.tokens(plan, self.policy.device)
                loss = self.loss(logprobs_S[own_S], tokens)
                if len(batch.answers):
                    weight_S = batch.answers.token_weights(plan, reference_A, batch.num_answers)
                    cross_entropy = -(self._tensor(weight_S.astype(np.float32)) * logprobs_S).sum()
                    loss = loss + regulariser_weight * cross_entropy / self.max_generation_len
                if self.kl_weight:
                    base_S = self._tensor(base[index][plan.prediction_S].astype(np.float32))
                    kl = self._kl(logprobs_S[own_S], base_S[own_S], tokens) / batch.num_answers
                    loss = loss + self.kl_weight * kl
                    sums["kl_to_base"] += float(kl.detach())
                torch.autograd.backward(loss)
                sums["loss"] += float(loss.detach())
                difference_S = (logprobs_S[own_S].detach() - tokens.behaviour_S).abs()
                sums["mismatch"] += float(difference_S[~tokens.stale_S].sum())
                sums["stale_mismatch"] += float(difference_S[tokens.stale_S].sum())
                seen.append(logprobs_C.detach().double().cpu().numpy())
        return self._metrics(batch, sums, seen)

    def _metrics(self, batch: Batch, sums: Mapping[str, float], seen: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics, from sums over all plans and the logprobs_C of each plan."""
        metrics = {
            "loss": sums["loss"],
            "packed_tokens": float(batch.packed_tokens),
            "separate_tokens": float(batch.separate_tokens),
        }
        counts = batch.counts
        if counts.fresh_tokens:
            metrics["mismatch"] = sums["mismatch"] / counts.fresh_tokens
        if counts.stale_tokens:
            metrics["stale_mismatch"] = sums["stale_mismatch"] / counts.stale_tokens
        if self.kl_weight:
            metrics["kl_to_base"] = sums["kl_to_base"]
        if len(batch.answers):
            logprob_A = batch.answers.sums(batch.plans, seen, batch.num_answers)
            metrics |= batch.answers.metrics(logprob_A)
        return metrics

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.policy.device)

    def _kl(self, logprobs_S: Tensor, base_S: Tensor, tokens: Tokens) -> Tensor:
        weight_S = tokens.importance_weights(logprobs_S, self.max_importance_weight)
        log_ratio_S = (base_S - logprobs_S).clamp(max=MAX_LOG_RATIO)
        return (weight_S * (torch.exp(log_ratio_S) - 1 - log_ratio_S)).sum() / self.max_generation_len

    def _base_logprobs(self, batch: Batch) -> list[np.ndarray]:
        """Return the untrained model's logprobs_C of every plan; an empty list if they are not needed."""
        if self.regulariser != "base" and not self.kl_weight:
            return []
        with torch.no_grad(), self.policy.adapter(BASE):
            return [self._plan_array(plan) for plan in batch.plans]

    def _plan_array(self, plan: TreePlan) -> np.ndarray:
        logprobs_C: np.ndarray = plan_logprobs(self.policy, plan, limits=self.limits).double().cpu().numpy()
        return logprobs_C

    def _reference(self, batch: Batch, base: list[np.ndarray]) -> np.ndarray:
        if self.regulariser == "base":
            return batch.answers.normalised(batch.answers.sums(batch.plans, base, batch.num_answers))
        return batch.answers.uniform_reference()
