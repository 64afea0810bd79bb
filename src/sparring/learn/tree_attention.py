"""Attention over a TreePlan, in which every token sees its ancestors and itself, section by section.

A section is a run of neighbouring nodes that goes through the model in one pass. Its tokens see each other
and the ancestors of its first node, whose keys and values an earlier section has computed: every token is fed
once. :class:`KeptKeys` are those, and their gradients: in the backward pass, which visits the sections in
reverse, a section adds to the gradients of what it read, and takes up those of what it wrote, which are then
complete.

:class:`RunAttention` divides a section into runs of neighbouring nodes. A run attends to the ancestors of its
first node and to itself, so the work does not grow with the square of the section's size. A run that is a
plain sequence needs no mask.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.core import pass_sizes
from sparring.learn.model_attention import DotProduct
from sparring.learn.trie import IntArray, TreePlan, ancestors


@dataclass(frozen=True)
class Section:
    """The nodes ``start .. stop-1`` of a plan, and the K nodes before them that they see, root first."""

    start: int
    stop: int
    above_K: IntArray

    @property
    def size(self) -> int:
        """Number of its own tokens."""
        return self.stop - self.start


def whole(plan: TreePlan) -> Section:
    """Return the section that contains all nodes."""
    return Section(0, plan.num_tokens, np.empty(0, dtype=np.int64))


def sections_of(plan: TreePlan, max_tokens: int) -> list[Section]:
    """Cut a plan into sections of at most ``max_tokens`` tokens.

    A section ends at the branch with the fewest ancestors in its second half, because the ancestors' keys and
    values have to be kept. If there is no branch, it ends in the middle of a sequence.
    """
    starts = plan.branch_starts
    sections, start = [], 0
    while start < plan.num_tokens:
        stop = min(start + max_tokens, plan.num_tokens)
        if stop < plan.num_tokens:
            low, high = np.searchsorted(starts, [start + max_tokens // 2 + 1, stop + 1])
            if low < high:
                stop = int(starts[low + plan.depths_T[starts[low:high]].argmin()])
        sections.append(Section(start, stop, ancestors(plan, start)))
        start = stop
    return sections


Layer = tuple[int, str]
"""The number of a layer and ``key`` or ``value``."""


@dataclass
class KeptKeys:
    """Keys and values of the N nodes that some section sees above it, in ascending order, by layer.

    ``kept`` are [G, N, d] tensors, ``gradients`` are their gradients in float32.
    """

    nodes_N: IntArray
    device: torch.device
    kept: dict[Layer, Tensor] = field(default_factory=dict)
    gradients: dict[Layer, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, sections: list[Section], device: torch.device) -> "KeptKeys":
        """Return the store for a plan that is cut into these sections, empty."""
        return cls(np.unique(np.concatenate([section.above_K for section in sections])), device)

    def for_section(self, section: Section) -> "SectionKeys":
        """Return the view of one section."""
        written = slice(*np.searchsorted(self.nodes_N, [section.start, section.stop]).tolist())
        return SectionKeys(
            self,
            read_K=torch.from_numpy(np.searchsorted(self.nodes_N, section.above_K)).to(self.device),
            written=written,
            own_W=torch.from_numpy(self.nodes_N[written] - section.start).to(self.device),
        )


@dataclass(frozen=True)
class SectionKeys:
    """What one section reads of a store (``read_K``) and writes into it: its tokens ``own_W``."""

    store: KeptKeys
    read_K: Tensor
    written: slice
    own_W: Tensor

    def join(self, layer: Layer, own_GTd: Tensor) -> Tensor:
        """Return what the section sees, the keys (or values) above it and its own, and keep its own."""
        if not len(self.read_K) and not len(self.own_W):
            return own_GTd
        joined_GLd: Tensor = _Join.apply(own_GTd, self, layer)  # type: ignore[no-untyped-call]
        return joined_GLd


class _Join(torch.autograd.Function):
    """Join what a section reads with its own; in the backward pass, pass gradients on through the store."""

    @staticmethod
    def forward(ctx: Any, own_GTd: Tensor, keys: SectionKeys, layer: Layer) -> Tensor:
        ctx.keys, ctx.layer = keys, layer
        store = keys.store
        if layer not in store.kept:
            heads, _, size = own_GTd.shape
            store.kept[layer] = own_GTd.new_empty(heads, len(store.nodes_N), size)
        store.kept[layer][:, keys.written] = own_GTd[:, keys.own_W]
        return torch.cat([store.kept[layer][:, keys.read_K], own_GTd], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        keys, (gradient_GLd,) = ctx.keys, gradients
        store, above = keys.store, len(keys.read_K)
        if ctx.layer not in store.gradients:
            store.gradients[ctx.layer] = torch.zeros_like(store.kept[ctx.layer], dtype=torch.float32)
        passed_on = store.gradients[ctx.layer]
        passed_on[:, keys.read_K] += gradient_GLd[:, :above]
        own_GTd = gradient_GLd[:, above:].clone()
        own_GTd[:, keys.own_W] += passed_on[:, keys.written].to(own_GTd.dtype)
        return own_GTd, None, None


# Cost of one more run in query-key pairs: roughly the cost of 30 layers of kernel launches on a CPU.
RUN_OVERHEAD_PAIRS = 6000


def score_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which attention is computed: at least float32 on CPUs, where bfloat16 is slow."""
    return torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype


@dataclass
class _Run:
    """A run of nodes and its ancestors ``context_K``.

    ``seen`` are the places of both among the section's keys, in stretches of neighbours. ``masks`` are added
    to the scores, by window; ``None`` if the run is causal.
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
    """The attention of a section, computed run by run; differentiable. ``keys`` are for other sections."""

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
    cuts = np.flatnonzero(np.diff(place_L) != 1) + 1
    bounds = [0, *cuts.tolist(), len(place_L)]
    return [slice(int(place_L[low]), int(place_L[high - 1]) + 1) for low, high in pairwise(bounds)]


def _seen_by_runs(key_GTd: Tensor, runs: list[_Run]) -> tuple[Tensor, ...]:
    seen: tuple[Tensor, ...] = _SeenByRuns.apply(key_GTd, runs)  # type: ignore[no-untyped-call]
    return seen


class _SeenByRuns(torch.autograd.Function):
    """Divide keys among runs. Autograd would make a tensor of all keys for each slice that a run takes."""

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
