"""Attention over a TreePlan, in which every token sees its ancestors and itself.

The plan is divided into runs of neighbouring nodes. A run attends to the ancestors of its first node and to
itself, so the work does not grow with the square of the plan's size. A run that is a plain sequence needs no
mask. If a layer has a sliding window, a token does not see ancestors that are ``window`` or more positions
before it.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from selfplay.learning.model_attention import DotProduct
from selfplay.learning.trie import TreePlan, ancestors, branch_starts

# Cost of one more run in query-key pairs: roughly the cost of 30 layers of kernel launches on a CPU.
RUN_OVERHEAD_PAIRS = 6000


@dataclass
class _Run:
    """A run of nodes. ``masks`` are added to the scores, by window; ``None`` if the run is causal."""

    start: int
    stop: int
    context_K: Tensor
    masks: dict[int | None, Tensor | None]


def split_runs(plan: TreePlan) -> list[tuple[int, int]]:
    """Cut 0..T-1 at branch starts where two runs cost less than one, overhead included."""
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
    """The attention of a plan, computed run by run; differentiable.

    Args:
        plan: the tokens of the forward pass.
        dtype: dtype of queries and keys.
        device: device of queries and keys.
    """

    def __init__(self, plan: TreePlan, dtype: torch.dtype, device: torch.device) -> None:
        self.plan = plan
        self.dtype = dtype
        self.device = device
        self.runs = [
            _Run(start, stop, torch.from_numpy(ancestors(plan, start)).to(device), {})
            for start, stop in split_runs(plan)
        ]
        self._deepest = int(plan.depths_T.max(initial=0))

    def __call__(
        self,
        layer: int,
        query_HTd: Tensor,
        key_GTd: Tensor,
        value_GTe: Tensor,
        window: int | None,
        dot_product: DotProduct,
    ) -> Tensor:
        """Return output_THe."""
        if window is not None and window > self._deepest:
            window = None  # it reaches back to the first token from everywhere
        outputs = []
        for run in self.runs:
            own = slice(run.start, run.stop)
            key_GKd, value_GKe = key_GTd[:, own], value_GTe[:, own]
            if len(run.context_K):
                key_GKd = torch.cat([key_GTd[:, run.context_K], key_GKd], dim=1)
                value_GKe = torch.cat([value_GTe[:, run.context_K], value_GKe], dim=1)
            outputs.append(dot_product(query_HTd[:, own], key_GKd, value_GKe, self.mask(run, window)))
        return torch.cat(outputs, dim=1).transpose(0, 1)

    def mask(self, run: _Run, window: int | None) -> Tensor | None:
        """Return the mask_QK of a run, ``None`` if it is causal; the first call with a window makes it."""
        if window not in run.masks:
            run.masks[window] = _mask(self.plan, run, window, self.dtype, self.device)
        return run.masks[window]


def _mask(
    plan: TreePlan, run: _Run, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    start, stop = run.start, run.stop
    chain = bool((plan.parents_T[start + 1 : stop] == range(start, stop - 1)).all())
    if chain and not len(run.context_K) and (window is None or stop - start <= window):
        return None
    query = torch.arange(start, stop)
    keys = torch.cat([run.context_K.cpu(), query])
    key_ends = torch.from_numpy(plan.end_T)[keys]
    sees_QK = (keys[None] <= query[:, None]) & (query[:, None] < key_ends[None])
    if window is not None:
        depth = torch.from_numpy(plan.depths_T)
        sees_QK &= depth[query][:, None] - depth[keys][None] < window
    mask_QK = torch.zeros(sees_QK.shape, dtype=dtype).masked_fill_(~sees_QK, float("-inf"))
    return mask_QK.to(device)
