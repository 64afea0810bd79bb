"""Sections: the parts of a plan that go through the model one after the other.

A section is a run of neighbouring nodes. Its tokens see each other and the ancestors of its first node, whose
keys and values an earlier section has computed: every token is fed once, wherever the plan is cut, also in
the middle of a sequence.

:class:`KeptKeys` are the keys and values that later sections see, and their gradients.
Only the ancestors of the sections' first nodes are kept. A section reads those that it sees and writes those
of its own tokens that a later one sees. In the backward pass, which visits the sections in reverse, a section
adds to the gradients of what it read, and takes up the gradients of what it wrote: by then they are complete.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
