"""Attention over a TreePlan, in which every token sees its ancestors and itself.

A section of the plan is divided into runs of neighbouring nodes. A run attends to the ancestors of its first
node and to itself, so the work does not grow with the square of the section's size. A run that is a plain
sequence needs no mask. If a layer has a sliding window, a token does not see ancestors that are ``window`` or
more positions before it.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from selfplay.core import pass_sizes
from selfplay.learning.kept_keys import SectionKeys
from selfplay.learning.model_attention import DotProduct
from selfplay.learning.sections import Section, whole
from selfplay.learning.trie import IntArray, TreePlan, ancestors

# Cost of one more run in query-key pairs: roughly the cost of 30 layers of kernel launches on a CPU.
RUN_OVERHEAD_PAIRS = 6000


def score_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which attention is computed: at least float32 on CPUs.

    There, the backward pass of torch's attention takes several times as long in bfloat16.
    """
    return torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype


@dataclass
class _Run:
    """A run of nodes. ``context_K`` are its ancestors, and ``place_K`` their places among the keys.

    ``masks`` are added to the scores, by window; ``None`` if the run is causal.
    """

    start: int
    stop: int
    context_K: IntArray
    place_K: Tensor
    masks: dict[int | None, Tensor | None]


def split_runs(plan: TreePlan, section: Section) -> list[tuple[int, int]]:
    """Cut a section at branch starts where two runs cost less than one, overhead included."""
    starts = plan.branch_starts
    low, high = np.searchsorted(starts, [section.start + 1, section.stop])
    runs: list[tuple[int, int]] = []
    first = section.start
    for begin, end in pairwise([*starts[low:high].tolist(), section.stop]):
        context, depth = int(plan.depths_T[first]), int(plan.depths_T[begin])
        before, added = begin - first, end - begin
        together = (before + added) * (context + before + added)
        apart = before * (context + before) + added * (depth + added)
        if together - apart > RUN_OVERHEAD_PAIRS:
            runs.append((first, begin))
            first = begin
    runs.append((first, section.stop))
    return runs


class RunAttention:
    """The attention of a section, computed run by run; differentiable.

    Args:
        plan: the plan to which the section belongs.
        section: the tokens of the forward pass; ``None`` for the whole plan.
        keys: keeps keys and values for other sections; ``None`` if there are none.
        dtype: dtype of queries and keys.
        device: device of queries and keys.
    """

    def __init__(
        self,
        plan: TreePlan,
        dtype: torch.dtype,
        device: torch.device,
        section: Section | None = None,
        keys: SectionKeys | None = None,
    ) -> None:
        self.plan = plan
        self.dtype = score_dtype(dtype, device)
        self.device = device
        self.section = section or whole(plan)
        self.keys = keys
        self.runs = [self._run(start, stop) for start, stop in split_runs(plan, self.section)]
        self._deepest = int(plan.depths_T[self.section.start : self.section.stop].max(initial=0))

    def _run(self, start: int, stop: int) -> _Run:
        context_K = ancestors(self.plan, start)
        section = self.section
        # Nodes above the section are a path, so a node's place is its depth; the section's own follow.
        place_K = np.where(
            context_K < section.start,
            self.plan.depths_T[context_K],
            context_K - section.start + len(section.above_K),
        )
        return _Run(start, stop, context_K, torch.from_numpy(place_K).to(self.device), {})

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
        if self.keys is not None:
            key_GTd = self.keys.join((layer, "key"), key_GTd)
            value_GTe = self.keys.join((layer, "value"), value_GTe)
        own_dtype = query_HTd.dtype
        query_HTd, key_GTd, value_GTe = (one.to(self.dtype) for one in (query_HTd, key_GTd, value_GTe))
        above = len(self.section.above_K)
        outputs = []
        for run in self.runs:
            queries = slice(run.start - self.section.start, run.stop - self.section.start)
            own = slice(queries.start + above, queries.stop + above)
            key_GKd, value_GKe = key_GTd[:, own], value_GTe[:, own]
            if len(run.context_K):
                key_GKd = torch.cat([key_GTd[:, run.place_K], key_GKd], dim=1)
                value_GKe = torch.cat([value_GTe[:, run.place_K], value_GKe], dim=1)
            outputs.append(dot_product(query_HTd[:, queries], key_GKd, value_GKe, self.mask(run, window)))
        return torch.cat(outputs, dim=1).transpose(0, 1).to(own_dtype)

    def mask(self, run: _Run, window: int | None) -> Tensor | None:
        """Return the mask_QK of a run, ``None`` if it is causal; the first call with a window makes it."""
        if window not in run.masks:
            run.masks[window] = _mask(self.plan, run, window, self.dtype, self.device)
        return run.masks[window]


def _mask(
    plan: TreePlan, run: _Run, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    start, stop = run.start, run.stop
    no_mask_needed = device.type in pass_sizes.FLASH_DEVICES
    chain = bool((plan.parents_T[start + 1 : stop] == np.arange(start, stop - 1)).all())
    seen = len(run.context_K) + stop - start
    if chain and (window is None or seen <= window) and (seen == stop - start or no_mask_needed):
        return None
    query = torch.arange(start, stop)
    keys = torch.cat([torch.from_numpy(run.context_K), query])
    key_ends = torch.from_numpy(plan.end_T)[keys]
    sees_QK = (keys[None] <= query[:, None]) & (query[:, None] < key_ends[None])
    if window is not None:
        depth = torch.from_numpy(plan.depths_T)
        sees_QK &= depth[query][:, None] - depth[keys][None] < window
    mask_QK = torch.zeros(sees_QK.shape, dtype=dtype).masked_fill_(~sees_QK, float("-inf"))
    return mask_QK.to(device)
