"""Attention over a TreePlan: every token sees its ancestors and itself.

The plan is walked in runs of neighbouring nodes. A run attends to the ancestors of its first node and to
itself, so the work grows with what is shared, not with the square of the pack; a run that is a plain
sequence needs no mask at all.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from selfplay.learning.trie import TreePlan, ancestors, branch_starts

# Cost of one more run, in query-key pairs: what 30 layers of kernel launches cost on a CPU, roughly.
RUN_OVERHEAD_PAIRS = 6000


@dataclass
class _Run:
    start: int
    stop: int
    context_K: Tensor
    mask_QK: Tensor | None


def split_runs(plan: TreePlan) -> list[tuple[int, int]]:
    """Cut 0..T-1 at branch starts wherever two runs need fewer query-key pairs than one."""
    starts = [*branch_starts(plan).tolist(), plan.num_tokens]
    if starts[0] != 0:
        starts.insert(0, 0)
    runs: list[tuple[int, int]] = []
    first = 0
    for begin, end in pairwise(starts):
        if begin == first:
            continue
        context, depth = int(plan.depths_T[first]), int(plan.depths_T[begin])
        before, added = begin - first, end - begin
        together = (before + added) * (context + before + added)
        apart = before * (context + before) + added * (depth + added)
        if together - apart > RUN_OVERHEAD_PAIRS:
            runs.append((first, begin))
            first = begin
    runs.append((first, plan.num_tokens))
    return runs


class RunAttention:
    """Executes a plan's attention run by run with scaled dot products; differentiable.

    Args:
        plan: what is fed.
        dtype: of queries and keys.
        device: of queries and keys.
    """

    def __init__(self, plan: TreePlan, dtype: torch.dtype, device: torch.device) -> None:
        self.runs = [_prepare(plan, start, stop, dtype, device) for start, stop in split_runs(plan)]

    def __call__(
        self, layer: int, query_HTd: Tensor, key_GTd: Tensor, value_GTd: Tensor, scale: float
    ) -> Tensor:
        """Return output_THd."""
        outputs = []
        for run in self.runs:
            own = slice(run.start, run.stop)
            key_GKd, value_GKd = key_GTd[:, own], value_GTd[:, own]
            if len(run.context_K):
                key_GKd = torch.cat([key_GTd[:, run.context_K], key_GKd], dim=1)
                value_GKd = torch.cat([value_GTd[:, run.context_K], value_GKd], dim=1)
            output_1HQd = F.scaled_dot_product_attention(
                query_HTd[None, :, own],
                key_GKd[None],
                value_GKd[None],
                attn_mask=run.mask_QK,
                is_causal=run.mask_QK is None,
                scale=scale,
                enable_gqa=True,
            )
            outputs.append(output_1HQd[0])
        return torch.cat(outputs, dim=1).transpose(0, 1)


def _prepare(plan: TreePlan, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> _Run:
    context = ancestors(plan, start)
    chain = bool((plan.parents_T[start + 1 : stop] == range(start, stop - 1)).all())
    if chain and not len(context):
        return _Run(start, stop, torch.empty(0, dtype=torch.long), None)
    query = torch.arange(start, stop)
    keys = torch.cat([torch.from_numpy(context), query])
    key_ends = torch.from_numpy(plan.end_T)[keys]
    sees_QK = (keys[None] <= query[:, None]) & (query[:, None] < key_ends[None])
    mask_QK = torch.zeros(sees_QK.shape, dtype=dtype).masked_fill_(~sees_QK, float("-inf"))
    return _Run(start, stop, torch.from_numpy(context).to(device), mask_QK.to(device))
