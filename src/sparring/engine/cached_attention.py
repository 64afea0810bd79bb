"""Attention of new tokens over the contexts in TreeCaches.

New tokens form chains, each the continuation of a known context. Chains whose contexts overlap form a group,
which reads the union of their contexts once. Groups of like size, also of different caches, are computed in
one batch. In a layer with a sliding window, a token does not see those ``window`` or more positions before
it.

A group copies its keys and values out of the store. On a CPU in single or double precision, a token that is a
group of its own, as in answers that share nothing, reads them where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparring.core import pass_sizes
from sparring.engine.key_store import READ_IN_PLACE, SlotRows
from sparring.engine.sampling import IntArray
from sparring.engine.tree_cache import TreeCache
from sparring.learn.model_attention import DotProduct

# Cost of one more group or batch in query-key pairs: roughly the cost of its kernel launches in a pass.
OVERHEAD_PAIRS = 1500
# Costs of a key in such pairs: that a group copies, and that a single token reads where it is.
COPIED_PAIRS, IN_PLACE_PAIRS = 2, 3


@dataclass
class _Chain:
    first: int  # index of its first token among the T new tokens
    length: int
    path: IntArray


@dataclass
class _Group:
    """``sees_QK``: whether a key is in a query's context. In a ``chain``, the queries are the last of the
    keys' positions."""

    queries_Q: IntArray
    slots_K: IntArray
    depth_Q: IntArray
    depth_K: IntArray
    sees_QK: NDArray[np.bool_]
    chain: bool


@dataclass
class _Batch:
    queries_BQ: Tensor
    slots_BK: Tensor
    depth_BQ: Tensor
    depth_BK: Tensor
    sees_BQK: Tensor
    chain: bool
    in_place: SlotRows | None = None
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)


class CachedAttention:
    """Attention that writes the new tokens' keys and values into the store and attends over it. ``parts`` are
    caches with one store, each with its new tokens, parents before children: together the T tokens of a pass.
    """

    def __init__(
        self, parts: Sequence[tuple[TreeCache, list[int]]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dtype = dtype
        in_place = device.type == "cpu" and dtype in READ_IN_PLACE
        self._store = parts[0][0].store
        self.groups: list[_Group] = []
        slots: list[IntArray] = []
        first = self._longest = 0
        for cache, nodes in parts:
            cache.begin_pass()
            chains = _chains(cache, nodes, first)
            self.groups += [_group(cache, members) for members in _partition(chains, in_place)]
            self._longest = max([self._longest, *(len(chain.path) for chain in chains)])
            slots.append(cache.slots_of(np.array(nodes)))
            first += len(nodes)
        self._slots_T = torch.from_numpy(np.concatenate(slots)).to(device)
        batches = _batches(self.groups)
        self.batches = [_batch(groups, device) for groups in batches]
        for batch in self.batches:
            if in_place and batch.queries_BQ.shape[1] == 1:
                batch.in_place = SlotRows(batch.slots_BK)
        self._places_T = torch.from_numpy(_places(batches, first)).to(device)

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
        self._store.write(layer, self._slots_T, key_GTd, value_GTe)
        if window is not None and window >= self._longest:
            window = None  # it reaches back to the first token from everywhere
        query_THd = query_HTd.transpose(0, 1)
        outputs = []
        for batch in self.batches:
            mask_B1QK = self._mask(batch, window)
            query_BQHd = query_THd[batch.queries_BQ]
            if (rows := batch.in_place) is not None:
                outputs.append(self._in_place(layer, query_BQHd[:, 0], rows, mask_B1QK, dot_product))
                continue
            key_BGKd, value_BGKe = self._store.read(layer, batch.slots_BK)
            output_BHQe = dot_product(query_BQHd.transpose(1, 2), key_BGKd, value_BGKe, mask_B1QK)
            outputs.append(output_BHQe.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)[self._places_T]

    def _in_place(
        self, layer: int, query_BHd: Tensor, rows: SlotRows, mask_B11K: Tensor | None, dot_product: DotProduct
    ) -> Tensor:
        scores_BHK = self._store.scores(layer, rows, query_BHd, dot_product.scale)
        weights_BH1K = dot_product.weights(scores_BHK[:, :, None], mask_B11K)
        return self._store.sums(layer, rows, weights_BH1K[:, :, 0])

    def _mask(self, batch: _Batch, window: int | None) -> Tensor | None:
        needless = batch.chain and window is None and self._slots_T.device.type in pass_sizes.FLASH_DEVICES
        if window not in batch.masks and needless:
            batch.masks[window] = None
        elif window not in batch.masks:
            sees_BQK = batch.sees_BQK
            if window is not None:
                sees_BQK = sees_BQK & (batch.depth_BQ[:, :, None] - batch.depth_BK[:, None] < window)
            mask_BQK = torch.zeros(sees_BQK.shape, dtype=self._dtype, device=sees_BQK.device)
            batch.masks[window] = mask_BQK.masked_fill_(~sees_BQK, float("-inf"))[:, None]
        return batch.masks[window]


def _chains(cache: TreeCache, nodes: list[int], offset: int) -> list[_Chain]:
    chains: list[_Chain] = []
    first = 0
    for index in range(1, len(nodes) + 1):
        if index < len(nodes) and cache.parents[nodes[index]] == nodes[index - 1]:
            continue
        chains.append(_Chain(offset + first, index - first, cache.path(nodes[index - 1])))
        first = index
    return sorted(chains, key=lambda chain: chain.path.astype(">u4").tobytes())  # depth-first


def _partition(chains: list[_Chain], in_place: bool) -> list[list[_Chain]]:
    """Put neighbours (in depth-first order) into one group where that costs less than separate groups."""
    groups: list[list[_Chain]] = []
    queries = keys = 0

    def cost(queries: int, keys: int) -> int:
        if not in_place:
            return queries * keys
        return keys * (IN_PLACE_PAIRS if queries == 1 else queries + COPIED_PAIRS)

    for chain in chains:
        if groups:
            added = len(chain.path) - _common_prefix(groups[-1][-1].path, chain.path)
            together = cost(queries + chain.length, keys + added)
            apart = cost(queries, keys) + cost(chain.length, len(chain.path))
            single = in_place and queries == len(groups[-1]) and chain.length == 1
            if together - apart <= (0 if single else OVERHEAD_PAIRS):
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


def _group(cache: TreeCache, chains: list[_Chain]) -> _Group:
    nodes, columns_of = _union([chain.path for chain in chains])
    queries = np.concatenate([np.arange(chain.first, chain.first + chain.length) for chain in chains])
    depth_Q = np.empty(len(queries), dtype=np.int64)
    depth_K = np.empty(len(nodes), dtype=np.int64)
    sees_QK = np.zeros((len(queries), len(nodes)), dtype=bool)
    row = 0
    for chain, columns in zip(chains, columns_of, strict=True):
        rows = slice(row, row + chain.length)
        context = len(chain.path) - chain.length
        sees_QK[rows, columns[:context]] = True
        sees_QK[rows, columns[context:]] = np.tri(chain.length, dtype=bool)
        depth_K[columns] = np.arange(len(chain.path))
        depth_Q[rows] = np.arange(context, len(chain.path))
        row += chain.length
    return _Group(queries, cache.slots_of(nodes), depth_Q, depth_K, sees_QK, chain=len(chains) == 1)


def _batches(groups: list[_Group]) -> list[list[_Group]]:
    """Put groups of like size together where filling them up costs less than one more batch of at most
    ``READ_KEYS`` keys."""
    batches: list[list[_Group]] = []
    queries = keys = 0
    for group in sorted(groups, key=lambda group: (len(group.slots_K), len(group.queries_Q)), reverse=True):
        own_queries, own_keys = len(group.queries_Q), len(group.slots_K)
        if batches:
            count, most = len(batches[-1]), max(queries, own_queries)
            together = (count + 1) * most * keys
            apart = count * queries * keys + own_queries * own_keys
            fits = (count + 1) * keys <= pass_sizes.READ_KEYS
            if fits and together - apart <= OVERHEAD_PAIRS:
                batches[-1].append(group)
                queries = most
                continue
        batches.append([group])
        queries, keys = own_queries, own_keys
    return batches


def _batch(groups: list[_Group], device: torch.device) -> _Batch:
    """Fill groups up to one size. What is added is not seen, and sees the first key."""
    most_queries = max(len(group.queries_Q) for group in groups)
    most_keys = max(len(group.slots_K) for group in groups)
    queries_BQ, depth_BQ = (np.zeros((len(groups), most_queries), dtype=np.int64) for _ in range(2))
    slots_BK, depth_BK = (np.zeros((len(groups), most_keys), dtype=np.int64) for _ in range(2))
    sees_BQK = np.zeros((len(groups), most_queries, most_keys), dtype=bool)
    for row, group in enumerate(groups):
        queries, keys = len(group.queries_Q), len(group.slots_K)
        queries_BQ[row, :queries], depth_BQ[row, :queries] = group.queries_Q, group.depth_Q
        slots_BK[row] = group.slots_K[0]
        slots_BK[row, :keys], depth_BK[row, :keys] = group.slots_K, group.depth_K
        sees_BQK[row, :queries, :keys] = group.sees_QK
        sees_BQK[row, queries:, 0] = True
    return _Batch(
        queries_BQ=torch.from_numpy(queries_BQ).to(device),
        slots_BK=torch.from_numpy(slots_BK).to(device),
        depth_BQ=torch.from_numpy(depth_BQ).to(device),
        depth_BK=torch.from_numpy(depth_BK).to(device),
        sees_BQK=torch.from_numpy(sees_BQK).to(device),
        chain=len(groups) == 1 and groups[0].chain,
    )


def _places(batches: list[list[_Group]], tokens: int) -> IntArray:
    places_T = np.empty(tokens, dtype=np.int64)
    start = 0
    for groups in batches:
        size = max(len(group.queries_Q) for group in groups)
        for group in groups:
            places_T[group.queries_Q] = np.arange(start, start + len(group.queries_Q))
            start += size
    return places_T


def _union(paths: list[IntArray]) -> tuple[IntArray, list[IntArray]]:
    """Return the nodes of depth-first paths, ascending, and the places of each path's nodes in them."""
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
