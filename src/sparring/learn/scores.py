"""Scores of predictions: what is computed from the hidden states at which a plan's tokens are drawn.

A [nodes, vocabulary] tensor of logits is large. No score keeps one until the backward pass: the logits are
made again for the gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.learn.policy import PolicyModel

Score = Callable[[PolicyModel, Tensor, Tensor, Tensor, float], Tensor]
"""(policy, hidden_ND, rows_c, tokens_c, temperature) -> values[..., c] of the predictions at some nodes."""


def drawn_logprobs(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    """Return logprobs_c of the tokens."""
    logprobs_c: Tensor = _DrawnLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, policy, rows_c, tokens_c, temperature
    )
    return logprobs_c


class _DrawnLogprobs(torch.autograd.Function):
    """Log-probabilities of tokens; the logits are made again for the gradient, which is computed in place.

    With p the softmax of a row of logits, the gradient of log p(token) is 1 at the token, less p.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, policy: PolicyModel, rows_c: Tensor, tokens_c: Tensor, temperature: float
    ) -> Tensor:
        logits_NV = _logits(policy, hidden_ND, temperature)
        normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        ctx.save_for_backward(hidden_ND, normaliser_N, rows_c, tokens_c)
        ctx.policy, ctx.temperature = policy, temperature
        return logits_NV[rows_c, tokens_c] - normaliser_N[rows_c]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (into_c,) = gradients
        hidden_ND, normaliser_N, rows_c, tokens_c = ctx.saved_tensors
        with torch.enable_grad():
            hidden_ND = hidden_ND.detach().requires_grad_()
            logits_NV = _logits(ctx.policy, hidden_ND, ctx.temperature)
        into_N = torch.zeros_like(normaliser_N).index_add_(0, rows_c, into_c)
        into_NV = (logits_NV.detach() - normaliser_N[:, None]).exp_().mul_(-into_N[:, None])
        into_NV.index_put_((rows_c, tokens_c), into_c, accumulate=True)
        torch.autograd.backward(logits_NV, into_NV)
        return hidden_ND.grad, None, None, None, None


def _logits(policy: PolicyModel, hidden_ND: Tensor, temperature: float) -> Tensor:
    """Return logits_NV at a temperature."""
    logits_NV = policy.logits(hidden_ND)
    return logits_NV if temperature == 1 else logits_NV / temperature


def _recomputed(score: Score) -> Score:
    """Let a score's logits be made again for the gradient, which draws no random numbers."""

    def scored(
        policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
    ) -> Tensor:
        arguments = (policy, hidden_ND, rows_c, tokens_c, temperature)
        if not torch.is_grad_enabled():
            return score(*arguments)
        found: Tensor = checkpoint(score, *arguments, use_reentrant=False, preserve_rng_state=False)
        return found

    return scored


@_recomputed
def logprobs_and_hits(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    """Return logprobs_c, and 1 where the token is the likeliest, as two rows."""
    logits_NV = _logits(policy, hidden_ND, temperature)
    normaliser_N = torch.logsumexp(logits_NV, dim=-1)
    hits_c = logits_NV.detach().argmax(dim=-1)[rows_c] == tokens_c
    return torch.stack([logits_NV[rows_c, tokens_c] - normaliser_N[rows_c], hits_c.to(logits_NV.dtype)])


@_recomputed
def logprobs_and_entropies(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    """Return logprobs_c, and the entropy in nats of the distributions over the vocabulary, as two rows."""
    logprobs_NV = torch.log_softmax(_logits(policy, hidden_ND, temperature), dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    return torch.stack([logprobs_NV[rows_c, tokens_c], entropy_N[rows_c]])


def states(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    """Return the hidden states, hidden_Dc."""
    return hidden_ND[rows_c].T


def with_values(
    score: Score,
    values: Callable[[Tensor], Tensor],
    policy: PolicyModel,
    hidden_ND: Tensor,
    rows_c: Tensor,
    tokens_c: Tensor,
    temperature: float,
) -> Tensor:
    """Return another score's rows, and the values of the hidden states as one more row."""
    scores = score(policy, hidden_ND, rows_c, tokens_c, temperature)
    return torch.cat([scores[None] if scores.ndim == 1 else scores, values(hidden_ND)[rows_c][None]])
