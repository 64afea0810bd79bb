"""TokenLearner: gradients of sums over tokens, and optimizer steps, as a client asks for them one by one.

Unlike :class:`sparring.learn.learner.Learner` it knows no records, batches or versions. The samples of a
request are packed into prefix trees, so a prefix that many of them share is computed once.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparring.core import SparringError
from sparring.learn.attention_choice import learner_limits
from sparring.learn.checkpoints import load_training_tensors, part_of, training_tensors
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import PolicyModel
from sparring.learn.token_losses import GivenTokens, RequestedLoss
from sparring.learn.trie import TOKEN_BITS, TokenSequence, TreePlan, bytes_of, plans_of

GRADIENT = "gradient."


@dataclass(frozen=True)
class TokenSample:
    """N tokens that are fed, the token whose log-probability is wanted after each, and numbers for each."""

    tokens: list[int]
    targets_N: NDArray[np.int64]
    inputs: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class AdamStep:
    """The values of one step of AdamW. Gradients are clipped to a norm of ``clip``, if it is above 0."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float


def plans_with_targets(samples: Sequence[TokenSample]) -> list[TreePlan]:
    """Pack samples into prefix trees whose predictions are the samples' targets, whatever follows."""
    sequences = [
        TokenSequence(bytes_of([*one.tokens, 0]), [range(1, len(one.tokens) + 1)]) for one in samples
    ]
    return [_predicting(plan, samples) for plan in plans_of(sequences)]


def _predicting(plan: TreePlan, samples: Sequence[TokenSample]) -> TreePlan:
    targets_S = np.concatenate([samples[number].targets_N for number in np.unique(plan.sample_S)])
    codes_S = (plan.predict_node_C[plan.prediction_S] << TOKEN_BITS) | targets_S
    codes_C, prediction_S = np.unique(codes_S, return_inverse=True)
    return replace(
        plan,
        predict_node_C=codes_C >> TOKEN_BITS,
        predict_token_C=codes_C & ((1 << TOKEN_BITS) - 1),
        prediction_S=prediction_S,
    )


class TokenLearner:
    """The owner of the optimizer of one policy. Gradients of several requests add up until a step.

    A forward pass has at most ``max_batch_tokens``.
    """

    def __init__(self, policy: PolicyModel, adapter: str, max_batch_tokens: int = 2048) -> None:
        self.policy = policy
        self.adapter = adapter
        self.limits = learner_limits(policy, adapter, max_batch_tokens)
        self.optimizer = torch.optim.AdamW(policy.adapter_parameters(adapter))

    def run(
        self, samples: Sequence[TokenSample], loss: RequestedLoss, *, backward: bool
    ) -> Generator[None, None, tuple[float, list[NDArray[np.float32]]]]:
        """Return the loss and logprobs_N of each sample; with ``backward``, add the gradient to what is
        accumulated. Yields after each of its passes, so that others can use the model.

        Raises SparringError if the loss or its gradient is not finite: nothing is then added.
        """
        logprobs = [np.empty(len(one.targets_N), dtype=np.float32) for one in samples]
        parameters = self.policy.adapter_parameters(self.adapter)
        before = [one.grad for one in parameters]
        for one in parameters:
            one.grad = None
        total = 0.0
        try:
            for plan in plans_with_targets(samples):
                with self.policy.adapter(self.adapter), torch.set_grad_enabled(backward):
                    logprobs_C = plan_logprobs(self.policy, plan, limits=self.limits)
                    prediction_S = torch.from_numpy(plan.prediction_S).to(logprobs_C.device)
                    logprobs_S = logprobs_C[prediction_S]
                    part = loss(logprobs_S, _given(plan, samples, logprobs_S.device))
                    if backward:
                        part.backward()  # type: ignore[no-untyped-call]
                total += float(part.detach())
                values_S = logprobs_S.detach().float().cpu().numpy()
                for number in np.unique(plan.sample_S):
                    logprobs[number][:] = values_S[plan.sample_S == number]
                yield
            own = [one.grad for one in parameters]
            if not math.isfinite(total) or not all(one is None or one.isfinite().all() for one in own):
                raise SparringError(f"the loss ({total}) or its gradient is not finite")
            before = [_sum(*both) for both in zip(before, own, strict=True)]
        finally:
            for one, gradient in zip(parameters, before, strict=True):
                one.grad = gradient
        return total, logprobs

    def step(self, values: AdamStep) -> float:
        """Make a step with the accumulated gradient, and return its norm before clipping. Raises
        SparringError: there is none."""
        parameters = self.policy.adapter_parameters(self.adapter)
        gradients = [one.grad for one in parameters if one.grad is not None]
        if not gradients:
            raise SparringError("there is no gradient since the last step. Call forward_backward first")
        norm = torch.nn.utils.get_total_norm(gradients)
        if values.clip > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, values.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = values.learning_rate, values.betas
            group["eps"], group["weight_decay"] = values.eps, values.weight_decay
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole state: weights, moments, and the gradient that is accumulated."""
        gradients = {
            f"{GRADIENT}{place}": one.grad.clone().cpu()
            for place, one in enumerate(self.policy.adapter_parameters(self.adapter))
            if one.grad is not None
        }
        return training_tensors(self.policy, self.adapter, self.optimizer) | gradients

    def load_tensors(self, tensors: dict[str, Tensor], *, optimizer: bool = True) -> None:
        """Restore a state of :meth:`tensors`, or its weights only. Raises InputError: it is of another
        shape."""
        if optimizer:
            load_training_tensors(self.policy, self.adapter, self.optimizer, tensors)
        else:
            self.policy.load_adapter_state(part_of(tensors, "weights."), self.adapter)
            self.optimizer.state.clear()
        gradients = part_of(tensors, GRADIENT) if optimizer else {}
        for place, one in enumerate(self.policy.adapter_parameters(self.adapter)):
            found = gradients.get(str(place))
            one.grad = None if found is None else found.to(one.device)


def _given(plan: TreePlan, samples: Sequence[TokenSample], device: torch.device) -> GivenTokens:
    numbers, sample_S = np.unique(plan.sample_S, return_inverse=True)
    own = [samples[number] for number in numbers]
    inputs = {
        name: torch.from_numpy(np.concatenate([one.inputs[name] for one in own])).to(device)
        for name in own[0].inputs
    }
    return GivenTokens(inputs, torch.from_numpy(sample_S).to(device))


def _sum(before: Tensor | None, own: Tensor | None) -> Tensor | None:
    if before is None or own is None:
        return own if before is None else before
    return before + own
