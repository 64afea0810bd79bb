"""Log-probabilities of a plan's predictions without a [tokens, vocabulary] tensor for the whole plan."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from selfplay.core.pass_sizes import ROWS_AT_ONCE
from selfplay.learning.policy import PolicyModel
from selfplay.learning.tree_attention import RunAttention
from selfplay.learning.trie import TreePlan


def plan_logprobs(
    policy: PolicyModel, plan: TreePlan, temperature: float | None = None, *, recompute: bool = False
) -> Tensor:
    """Run the active adapter over ``plan`` and return logprobs_C, one per prediction, in float32.

    Args:
        policy: the model.
        plan: tokens to feed and predictions.
        temperature: what the logits are divided by; by default the plan's sampling temperature.
        recompute: keep only the layers' inputs, and compute the rest again for the gradient (see ``memory``).
    """
    temperature = plan.temperature if temperature is None else temperature
    return _of_predictions(_logprobs, policy, plan, temperature, recompute)


def plan_scores(policy: PolicyModel, plan: TreePlan, *, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """Return logprobs_C as :func:`plan_logprobs` does, and hits_C: 1 where the token is the likeliest."""
    logprobs_C, hits_C = _of_predictions(_scores, policy, plan, plan.temperature, recompute)
    return logprobs_C, hits_C.detach()


def _of_predictions(
    score: Callable[[PolicyModel, Tensor, Tensor, Tensor, float], Tensor],
    policy: PolicyModel,
    plan: TreePlan,
    temperature: float,
    recompute: bool,
) -> Tensor:
    """Return the values of ``score``, whose last dimension is that of the predictions, for the whole plan."""
    device = policy.device
    tokens_T = torch.from_numpy(plan.tokens_T).to(device)
    positions_T = torch.from_numpy(plan.depths_T).to(device)
    attend = RunAttention(plan, policy.dtype, device)
    with policy.recomputing(recompute and torch.is_grad_enabled()):
        hidden_TD = policy.hidden_states(tokens_T, positions_T, attend)
    nodes_P, row_C = torch.unique(torch.from_numpy(plan.predict_node_C), return_inverse=True)
    token_C = torch.from_numpy(plan.predict_token_C)
    order_C = torch.argsort(row_C)
    pieces = []
    for first in range(0, len(nodes_P), ROWS_AT_ONCE):
        in_chunk_C = order_C[
            torch.searchsorted(row_C[order_C], first) : torch.searchsorted(
                row_C[order_C], first + ROWS_AT_ONCE
            )
        ]
        hidden_ND = hidden_TD[nodes_P[first : first + ROWS_AT_ONCE].to(device)]
        rows, tokens = (row_C[in_chunk_C] - first).to(device), token_C[in_chunk_C].to(device)
        if torch.is_grad_enabled():
            chunk = checkpoint(
                score,
                policy,
                hidden_ND,
                rows,
                tokens,
                temperature,
                use_reentrant=False,
                preserve_rng_state=False,  # it draws no random numbers
            )
        else:
            chunk = score(policy, hidden_ND, rows, tokens, temperature)
        pieces.append(chunk)
    values = torch.cat(pieces, dim=-1)
    inverse_C = torch.empty_like(order_C)
    inverse_C[order_C] = torch.arange(len(order_C))
    return values[..., inverse_C.to(device)]


def _logprobs(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    logits_NV = policy.logits(hidden_ND) / temperature
    normaliser_N = torch.logsumexp(logits_NV, dim=-1)
    return logits_NV[rows_c, tokens_c] - normaliser_N[rows_c]


def _scores(
    policy: PolicyModel, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor, temperature: float
) -> Tensor:
    logits_NV = policy.logits(hidden_ND) / temperature
    normaliser_N = torch.logsumexp(logits_NV, dim=-1)
    hits_c = logits_NV.detach().argmax(dim=-1)[rows_c] == tokens_c
    return torch.stack([logits_NV[rows_c, tokens_c] - normaliser_N[rows_c], hits_c.to(logits_NV.dtype)])
