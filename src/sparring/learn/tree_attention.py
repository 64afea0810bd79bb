"""Attention over a TreePlan, in which every token sees its ancestors and itself.

A section of the plan is divided into runs of neighbouring nodes. A run attends to the ancestors of its first
node and to itself, so the work does not grow with the square of the section's size. A run that is a plain
sequence needs no mask. If a layer has a sliding window, a token does not see ancestors that are ``window`` or
more positions before it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.core import pass_sizes
from sparring.learn.model_attention import DotProduct
from sparring.learn.sections import Section, SectionKeys, whole
from sparring.learn.trie import IntArray, TreePlan, ancestors

# Cost of one more run in query-key pairs: roughly the cost of 30 layers of kernel launches on a CPU.
RUN_OVERHEAD_PAIRS = 6000


def score_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which attention is computed: at least float32 on CPUs.

    There, the backward pass of torch's attention takes several times as long in bfloat16.
    """
    return torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype


@dataclass
class _Run:
    """A run of nodes. ``context_K`` are its ancestors.

    ``seen`` are the places of its ancestors and of its own nodes among the section's keys, in stretches of
    neighbours. ``masks`` are added to the scores, by window; ``None`` if the run is causal.
    """

    start: int
    stop: int
    context_K: IntArray
    seen: list[slice]
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
        nodes = np.concatenate([context_K, np.arange(start, stop)])
        # Nodes above the section are a path, so a node's place is its depth; the section's own follow.
        place_L = np.where(
            nodes < section.start,
            self.plan.depths_T[nodes],
            nodes - section.start + len(section.above_K),
        )
        return _Run(start, stop, context_K, _stretches(place_L), {})

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
        keys = _seen_by_runs(key_GTd, self.runs)
        values = _seen_by_runs(value_GTe, self.runs)
        queries = torch.split(query_HTd, [run.stop - run.start for run in self.runs], dim=1)
        outputs = [
            dot_product(query_HQd, key_GLd, value_GLe, self.mask(run, window))
            for run, query_HQd, key_GLd, value_GLe in zip(self.runs, queries, keys, values, strict=True)
        ]
        return torch.cat(outputs, dim=1).transpose(0, 1).to(own_dtype)

    def mask(self, run: _Run, window: int | None) -> Tensor | None:
        """Return the mask_QK of a run, ``None`` if it is causal; the first call with a window makes it."""
        if window not in run.masks:
            run.masks[window] = _mask(self.plan, run, window, self.dtype, self.device)
        return run.masks[window]


def _stretches(place_L: IntArray) -> list[slice]:
    """Return the stretches of neighbours in a list of places."""
    cuts = np.flatnonzero(np.diff(place_L) != 1) + 1
    bounds = [0, *cuts.tolist(), len(place_L)]
    return [slice(int(place_L[low]), int(place_L[high - 1]) + 1) for low, high in pairwise(bounds)]


def _seen_by_runs(key_GTd: Tensor, runs: list[_Run]) -> tuple[Tensor, ...]:
    """Return the keys (or values) that each run sees."""
    seen: tuple[Tensor, ...] = _SeenByRuns.apply(key_GTd, runs)  # type: ignore[no-untyped-call]
    return seen


class _SeenByRuns(torch.autograd.Function):
    """Divide keys among runs; the backward pass adds up the gradients of all runs in one tensor.

    Autograd would make a tensor of all keys for each slice that a run takes.
    """

    @staticmethod
    def forward(ctx: Any, key_GTd: Tensor, runs: list[_Run]) -> tuple[Tensor, ...]:
        ctx.runs, ctx.shape = runs, key_GTd.shape
        return tuple(torch.cat([key_GTd[:, one] for one in run.seen], dim=1) for run in runs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        into_GTd = gradients[0].new_zeros(ctx.shape)
        for run, gradient_GLd in zip(ctx.runs, gradients, strict=True):
            begin = 0
            for one in run.seen:
                end = begin + one.stop - one.start
                into_GTd[:, one] += gradient_GLd[:, begin:end]
                begin = end
        return into_GTd, None


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
