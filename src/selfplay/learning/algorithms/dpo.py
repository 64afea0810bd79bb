"""Direct preference optimisation: prefer one answer to another, as far as a reference allows.

A pair has one prompt x, a preferred answer y+ and a rejected answer y-. With log pi(y | x), the sum of the
log-probabilities of an answer's tokens, the one that ends the turn included, the loss is the mean over the
pairs of a mini-batch (Rafailov et al. 2023, "Direct Preference Optimization", equation 7):

    d = [log pi(y+ | x) - log ref(y+ | x)] - [log pi(y- | x) - log ref(y- | x)]
    L = mean of -log sigmoid(beta * d)

It is TRL 1.16's ``DPOTrainer`` with ``loss_type="sigmoid"``. The reference is the adapter before its first
step (an untrained one changes nothing, so that is the base model): there is no second model. Its
log-probabilities are computed once, over larger trees than those of mini-batches, and are kept.

The answers of a pair share their prompt, and pairs of one tree of answers share more, so a mini-batch is one
prefix tree. A pair may be split over the plans into which a large tree is cut. Then the loss of neither plan
alone is right: for plans with split pairs, the log-probabilities are first computed without a gradient, and
each plan's backward pass sees the other plans' part as a constant. The gradients of the plans add up to that
of the batch, because the derivative of a pair's loss with respect to a token depends on the others only
through d.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from selfplay.learning.algorithms.packed_loss import PackedLoss, Sample
from selfplay.learning.logprobs import plan_logprobs
from selfplay.learning.policy import TRAINED, PolicyModel
from selfplay.learning.trie import TreePlan

AT_ONCE = 128
"""Number of pairs that are packed together where no gradient limits it."""


@dataclass(frozen=True)
class Pair:
    """The tokens of a prompt and of two answers, with the reference's log-probabilities of the answers."""

    prompt: list[int]
    preferred: list[int]
    rejected: list[int]
    reference: tuple[float, float] = (0.0, 0.0)

    def samples(self) -> list[Sample]:
        """Return the two answers as samples, the preferred one first."""
        return [Sample(self.prompt, self.preferred), Sample(self.prompt, self.rejected)]


class Dpo(PackedLoss[Pair]):
    """The algorithm that the module's docstring describes.

    Args:
        policy: the model.
        beta: how strongly the policy is held at the reference.
        adapter: name of the policy that receives the gradients.
        max_batch_tokens: maximum number of tokens in one forward pass.
    """

    def __init__(
        self,
        policy: PolicyModel,
        *,
        beta: float,
        adapter: str = TRAINED,
        max_batch_tokens: int = 2048,
    ) -> None:
        super().__init__(policy, adapter=adapter, max_batch_tokens=max_batch_tokens)
        self.beta = beta

    def with_reference(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with the present adapter as their reference; call it before the first step."""
        sums = self._answer_logprobs(pairs).tolist()
        return [replace(pair, reference=(good, bad)) for pair, (good, bad) in zip(pairs, sums, strict=True)]

    def update(self, examples: Sequence[Pair]) -> dict[str, float]:
        """Accumulate the gradients of one mini-batch; see :meth:`metrics` for what is returned."""
        plans = self.plans([sample for pair in examples for sample in pair.samples()])
        answers = [np.unique(plan.sample_S) for plan in plans]
        count_P = np.bincount(np.concatenate([np.unique(one // 2) for one in answers]))
        sums = [np.zeros(2 * len(examples)) for _ in plans]
        with self.policy.adapter(self.adapter):
            for index, plan in enumerate(plans):
                if (count_P[answers[index] // 2] > 1).any():
                    with torch.no_grad():
                        sums[index] = self._sums(plan, len(examples)).double().cpu().numpy()
            elsewhere = sum(sums, np.zeros(2 * len(examples)))
            for index, plan in enumerate(plans):
                own_A = self._sums(plan, len(examples))
                rest_A = torch.from_numpy(elsewhere - sums[index]).to(own_A)
                pairs = self.tensor(np.unique(answers[index] // 2))
                loss_P = self._losses((own_A + rest_A).view(-1, 2), examples)
                torch.autograd.backward(loss_P[pairs].sum() / len(examples))
                sums[index] = own_A.detach().double().cpu().numpy()
        return self.metrics(sum(sums, np.zeros(2 * len(examples))).reshape(-1, 2), examples)

    def evaluate(self, examples: Sequence[Pair]) -> dict[str, float]:
        """Return the metrics over any number of pairs, without gradients."""
        return self.metrics(self._answer_logprobs(examples), examples)

    def metrics(self, logprobs_P2: np.ndarray, pairs: Sequence[Pair]) -> dict[str, float]:
        """Return the metrics of pairs, given the log-probabilities of their answers.

        An answer's reward is beta * log(pi / reference). ``accuracy`` is the share of pairs whose preferred
        answer has the higher one, ``reward_margin`` the mean difference.
        """
        reward_P2 = self.beta * (logprobs_P2 - np.array([pair.reference for pair in pairs]))
        margin_P = reward_P2[:, 0] - reward_P2[:, 1]
        return {
            "loss": float(np.logaddexp(0.0, -margin_P).mean()),
            "accuracy": float((margin_P > 0).mean()),
            "reward_preferred": float(reward_P2[:, 0].mean()),
            "reward_rejected": float(reward_P2[:, 1].mean()),
            "reward_margin": float(margin_P.mean()),
        }

    def _losses(self, logprobs_P2: Tensor, pairs: Sequence[Pair]) -> Tensor:
        reference_P2 = torch.tensor([pair.reference for pair in pairs]).to(logprobs_P2)
        ratio_P2 = logprobs_P2 - reference_P2
        return -logsigmoid(self.beta * (ratio_P2[:, 0] - ratio_P2[:, 1]))

    def _sums(self, plan: TreePlan, num_pairs: int) -> Tensor:
        """Return logprobs_A of all answers of a batch: the sums over the tokens that are in ``plan``."""
        logprobs_C = plan_logprobs(self.policy, plan, limits=self.limits)
        logprobs_S = logprobs_C[self.tensor(plan.prediction_S)]
        zeros_A = torch.zeros(2 * num_pairs, dtype=logprobs_S.dtype, device=logprobs_S.device)
        return zeros_A.index_add(0, self.tensor(plan.sample_S), logprobs_S)

    def _answer_logprobs(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Return logprobs_P2 of the active weights, without gradients."""
        parts = []
        with torch.no_grad(), self.policy.adapter(self.adapter):
            for first in range(0, len(pairs), AT_ONCE):
                some = pairs[first : first + AT_ONCE]
                total_A = np.zeros(2 * len(some))
                for plan in self.plans([sample for pair in some for sample in pair.samples()]):
                    total_A += self._sums(plan, len(some)).double().cpu().numpy()
                parts.append(total_A.reshape(-1, 2))
        return np.concatenate(parts)
