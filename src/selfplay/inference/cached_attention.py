"""Attention of new tokens over a TreeCache.

New tokens form chains, each the continuation of a known context. Chains whose contexts overlap are put into
one group, which reads the union of their contexts once; other chains are computed separately. If a layer has
a sliding window, a token does not see tokens that are ``window`` or more positions before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from selfplay.core import pass_sizes
from selfplay.inference.tree_cache import IntArray, TreeCache

# Cost of one more group in query-key pairs: roughly the cost of its kernel launches in a forward pass.
GROUP_OVERHEAD_PAIRS = 1500

DotProduct = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(query_HQd, key_GKd, value_GKe, mask_QK) -> output_HQe; the mask is added to the scores, and without one
the queries are the last of the positions."""


@dataclass
class _Chain:
    first: int  # index of its first token among the T new tokens
    length: int
    path: IntArray


@dataclass
class _Group:
    """``sees_QK`` says whether a key is in a query's context; ``masks`` are added to scores, by window.

    In a group that is a ``chain``, the queries are the last of the keys' positions, in order.
    """

    queries_Q: Tensor
    slots_K: Tensor
    depth_Q: Tensor
    depth_K: Tensor
    sees_QK: Tensor
    chain: bool
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)


class CachedAttention:
    """Attention that writes the new tokens' keys and values into the cache and attends over it.

    Args:
        cache: the cache of contexts.
        nodes: the T new tokens, parents before children.
        dtype: dtype of queries and keys.
        device: device of queries and keys.
    """

    def __init__(self, cache: TreeCache, nodes: list[int], dtype: torch.dtype, device: torch.device) -> None:
        self.cache = cache
        self.dtype = dtype
        self.slots_T = torch.tensor(nodes, device=device)
        cache.begin_pass()
        chains = _chains(cache, nodes)
        self.groups = [_group(members, device) for members in _partition(chains)]
        self._longest = max(len(chain.path) for chain in chains)

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
        self.cache.write(layer, self.slots_T, key_GTd, value_GTe)
        if window is not None and window >= self._longest:
            window = None  # it reaches back to the first token from everywhere
        output_HTe = query_HTd.new_empty(*query_HTd.shape[:2], value_GTe.shape[2])
        for group in self.groups:
            key_GKd, value_GKe = self.cache.read(layer, group.slots_K)
            mask_QK = self._mask(group, window)
            output_HTe[:, group.queries_Q] = dot_product(
                query_HTd[:, group.queries_Q], key_GKd, value_GKe, mask_QK
            )
        return output_HTe.transpose(0, 1)

    def _mask(self, group: _Group, window: int | None) -> Tensor | None:
        """Return the mask_QK of a group; the first call with a window makes it."""
        needless = group.chain and window is None and self.slots_T.device.type in pass_sizes.FLASH_DEVICES
        if window not in group.masks and needless:
            group.masks[window] = None
        elif window not in group.masks:
            sees_QK = group.sees_QK
            if window is not None:
                sees_QK = sees_QK & (group.depth_Q[:, None] - group.depth_K[None] < window)
            mask_QK = torch.zeros(sees_QK.shape, dtype=self.dtype, device=sees_QK.device)
            group.masks[window] = mask_QK.masked_fill_(~sees_QK, float("-inf"))
        return group.masks[window]


Attend = Callable[[int, Tensor, Tensor, Tensor, int | None, DotProduct], Tensor]
"""(layer, query_HTd, key_GTd, value_GTe, window, dot_product) -> output_THe"""


def attention_over(
    parts: Sequence[tuple[TreeCache, list[int]]], dtype: torch.dtype, device: torch.device
) -> Attend:
    """Return the attention of a pass over new tokens of several caches, one cache after the other."""
    first, *others = [CachedAttention(cache, nodes, dtype, device) for cache, nodes in parts]
    if not others:
        return first
    stops = list(accumulate(len(nodes) for _, nodes in parts))

    def attend(
        layer: int,
        query_HTd: Tensor,
        key_GTd: Tensor,
        value_GTe: Tensor,
        window: int | None,
        dot_product: DotProduct,
    ) -> Tensor:
        outputs = []
        for own, (start, stop) in zip([first, *others], pairwise([0, *stops]), strict=True):
            mine = slice(start, stop)
            tensors = (query_HTd[:, mine], key_GTd[:, mine], value_GTe[:, mine])
            outputs.append(own(layer, *tensors, window, dot_product))
        return torch.cat(outputs)

    return attend


def _chains(cache: TreeCache, nodes: list[int]) -> list[_Chain]:
    chains: list[_Chain] = []
    first = 0
    for index in range(1, len(nodes) + 1):
        if index < len(nodes) and cache.parents[nodes[index]] == nodes[index - 1]:
            continue
        chains.append(_Chain(first, index - first, cache.path(nodes[index - 1])))
        first = index
    return sorted(chains, key=lambda chain: chain.path.astype(">u4").tobytes())  # depth-first


def _partition(chains: list[_Chain]) -> list[list[_Chain]]:
    """Put neighbours (in depth-first order) into one group where that costs less than separate groups."""
    groups: list[list[_Chain]] = []
    queries = keys = 0
    for chain in chains:
        if groups:
            added = len(chain.path) - _common_prefix(groups[-1][-1].path, chain.path)
            together = (queries + chain.length) * (keys + added)
            apart = queries * keys + chain.length * len(chain.path)
            if together - apart <= GROUP_OVERHEAD_PAIRS:
                groups[-1].append(chain)
                queries, keys = queries + chain.length, keys + added
                continue
        groups.append([chain])
        queries, keys = chain.length, len(chain.path)
    return groups


def _common_prefix(left: IntArray, right: IntArray) -> int:
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _group(chains: list[_Chain], device: torch.device) -> _Group:
    slots, columns_of = _union([chain.path for chain in chains])
    queries = np.concatenate([np.arange(chain.first, chain.first + chain.length) for chain in chains])
    depth_Q = np.empty(len(queries), dtype=np.int64)
    depth_K = np.empty(len(slots), dtype=np.int64)
    sees_QK = np.zeros((len(queries), len(slots)), dtype=bool)
    row = 0
    for chain, columns in zip(chains, columns_of, strict=True):
        rows = slice(row, row + chain.length)
        context = len(chain.path) - chain.length
        sees_QK[rows, columns[:context]] = True
        sees_QK[rows, columns[context:]] = np.tri(chain.length, dtype=bool)
        depth_K[columns] = np.arange(len(chain.path))
        depth_Q[rows] = np.arange(context, len(chain.path))
        row += chain.length
    return _Group(
        queries_Q=torch.from_numpy(queries).to(device),
        slots_K=torch.from_numpy(slots).to(device),
        depth_Q=torch.from_numpy(depth_Q).to(device),
        depth_K=torch.from_numpy(depth_K).to(device),
        sees_QK=torch.from_numpy(sees_QK).to(device),
        chain=len(chains) == 1,
    )


def _union(paths: list[IntArray]) -> tuple[IntArray, list[IntArray]]:
    """Return the nodes of paths in depth-first order, ascending, and the places of each path's nodes in them.

    Each path adds what it does not share with the one before it.
    """
    new, place_of, count = [paths[0]], [np.arange(len(paths[0]))], len(paths[0])
    for before, path in pairwise(paths):
        common = _common_prefix(before, path)
        added = np.arange(count, count + len(path) - common)
        place_of.append(np.concatenate([place_of[-1][:common], added]))
        new.append(path[common:])
        count += len(added)
    nodes = np.concatenate(new)
    order = np.argsort(nodes)
    rank = np.empty_like(order)
    rank[order] = np.arange(count)
    return nodes[order], [rank[places] for places in place_of]
