"""Attention of new tokens over a TreeCache.

New tokens come as chains, each the continuation of a known context. Chains whose contexts overlap are put
into one group, which reads the union of their contexts once; the rest are computed apart.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from selfplay.inference.tree_cache import IntArray, TreeCache

# Cost of one more group, in query-key pairs: what a forward pass pays for its kernel launches, roughly.
GROUP_OVERHEAD_PAIRS = 1500


@dataclass
class _Chain:
    first: int  # its first token's place among the T new tokens
    length: int
    path: IntArray


@dataclass
class _Group:
    queries_Q: Tensor
    slots_K: Tensor
    mask_QK: Tensor


class CachedAttention:
    """Writes the new tokens' keys and values into the cache and attends over it.

    Args:
        cache: where contexts live.
        nodes: the T new tokens, parents before children.
        dtype: of queries and keys.
        device: of queries and keys.
    """

    def __init__(self, cache: TreeCache, nodes: list[int], dtype: torch.dtype, device: torch.device) -> None:
        self.cache = cache
        self.slots_T = torch.tensor(nodes, device=device)
        chains = _chains(cache, nodes)
        self.groups = [_group(members, dtype, device) for members in _partition(chains)]

    def __call__(
        self, layer: int, query_HTd: Tensor, key_GTd: Tensor, value_GTd: Tensor, scale: float
    ) -> Tensor:
        """Return output_THd."""
        self.cache.write(layer, self.slots_T, key_GTd, value_GTd)
        output_HTd = torch.empty_like(query_HTd)
        for group in self.groups:
            key_GKd, value_GKd = self.cache.read(layer, group.slots_K)
            output_HTd[:, group.queries_Q] = F.scaled_dot_product_attention(
                query_HTd[None, :, group.queries_Q],
                key_GKd[None],
                value_GKd[None],
                attn_mask=group.mask_QK,
                scale=scale,
                enable_gqa=True,
            )[0]
        return output_HTd.transpose(0, 1)


def _chains(cache: TreeCache, nodes: list[int]) -> list[_Chain]:
    chains: list[_Chain] = []
    first = 0
    for index in range(1, len(nodes) + 1):
        if index < len(nodes) and cache.parents[nodes[index]] == nodes[index - 1]:
            continue
        chains.append(_Chain(first, index - first, cache.path(nodes[index - 1])))
        first = index
    return sorted(chains, key=lambda chain: chain.path.tolist())


def _partition(chains: list[_Chain]) -> list[list[_Chain]]:
    """Put neighbours (in depth-first order) together where that needs fewer query-key pairs than apart."""
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


def _group(chains: list[_Chain], dtype: torch.dtype, device: torch.device) -> _Group:
    slots = np.unique(np.concatenate([chain.path for chain in chains]))
    queries = np.concatenate([np.arange(chain.first, chain.first + chain.length) for chain in chains])
    sees_QK = np.zeros((len(queries), len(slots)), dtype=bool)
    row = 0
    for chain in chains:
        columns = np.searchsorted(slots, chain.path)
        context = len(chain.path) - chain.length
        sees_QK[row : row + chain.length, columns[:context]] = True
        sees_QK[row : row + chain.length, columns[context:]] = np.tri(chain.length, dtype=bool)
        row += chain.length
    mask_QK = torch.zeros(sees_QK.shape, dtype=dtype)
    mask_QK.masked_fill_(torch.from_numpy(~sees_QK), float("-inf"))
    return _Group(
        torch.from_numpy(queries).to(device), torch.from_numpy(slots).to(device), mask_QK.to(device)
    )
