"""TreeCache: keys and values of all tokens computed under one adapter version, with each context once.

Nodes are tokens in their context; node ids are also slots in the key and value store. A node is *pending*
until a forward pass has filled its slot.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfplay.inference.next_tokens import NextToken

IntArray = NDArray[np.int64]
ROOT = -1


@dataclass
class TreeCache:
    """The cache of one adapter version, with a [G, capacity, d] tensor per layer that grows by doubling."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    children: dict[int, dict[int, int]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    next_tokens: dict[int, NextToken] = field(default_factory=dict)
    _paths: dict[int, IntArray] = field(default_factory=dict)
    _older_paths: dict[int, IntArray] = field(default_factory=dict)
    _keys: list[Tensor] = field(default_factory=list)
    _values: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, ids: list[int], node: int = ROOT) -> tuple[int, int]:
        """Follow ``ids`` below ``node`` as far as nodes exist; return (last node, number of matches)."""
        for matched, token in enumerate(ids):
            child = self.children.get(node, {}).get(token)
            if child is None:
                return node, matched
            node = child
        return node, len(ids)

    def insert(self, ids: list[int], node: int = ROOT) -> int:
        """Return the node of ``ids`` below ``node``; new nodes become pending."""
        node, matched = self.find(ids, node)
        for token in ids[matched:]:
            child = len(self.tokens)
            self.children.setdefault(node, {})[token] = child
            self.tokens.append(token)
            self.parents.append(node)
            self.depths.append(self.depths[node] + 1 if node != ROOT else 0)
            self.pending.append(child)
            node = child
        return node

    def path(self, node: int) -> IntArray:
        """Return the nodes from the first token of the context to ``node`` itself. Do not change the array.

        A context that has grown by a few tokens since its path was asked for, in this forward pass or in the
        one before, is not followed to its beginning again.
        """
        new, ancestor = [], node
        while ancestor != ROOT and ancestor not in self._paths and ancestor not in self._older_paths:
            new.append(ancestor)
            ancestor = self.parents[ancestor]
        known = self._paths.get(ancestor, self._older_paths.get(ancestor))
        grown = np.array(new[::-1], dtype=np.int64)
        path = grown if known is None else np.concatenate([known, grown])
        self._paths[node] = path
        return path

    def begin_pass(self) -> None:
        """Forget the paths that were asked for before the last forward pass."""
        self._older_paths, self._paths = self._paths, {}

    def write(self, layer: int, slots_T: Tensor, key_GTd: Tensor, value_GTd: Tensor) -> None:
        """Fill slots of one layer."""
        if layer == len(self._keys):
            self._keys.append(key_GTd.new_empty(key_GTd.shape[0], 0, key_GTd.shape[2]))
            self._values.append(value_GTd.new_empty(value_GTd.shape[0], 0, value_GTd.shape[2]))
        for store, new_GTd in ((self._keys, key_GTd), (self._values, value_GTd)):
            if store[layer].shape[1] < len(self):
                grown = new_GTd.new_empty(
                    new_GTd.shape[0], max(len(self), 2 * store[layer].shape[1]), new_GTd.shape[2]
                )
                grown[:, : store[layer].shape[1]] = store[layer]
                store[layer] = grown
            store[layer][:, slots_T] = new_GTd

    def read(self, layer: int, slots_K: Tensor) -> tuple[Tensor, Tensor]:
        """Return (key_GKd, value_GKd) of one layer."""
        return self._keys[layer][:, slots_K], self._values[layer][:, slots_K]

    def prune(self, nodes: list[int]) -> dict[int, int]:
        """Keep only ``nodes`` and their ancestors; return new ids by old ids."""
        paths = [self.path(node) for node in dict.fromkeys(nodes)]
        self._paths, self._older_paths = {}, {}
        keep = np.unique(np.concatenate(paths)) if paths else np.empty(0, dtype=np.int64)
        new_id = {ROOT: ROOT} | {int(old): new for new, old in enumerate(keep)}
        _keep_slots(self._keys, keep)
        _keep_slots(self._values, keep)
        self.tokens = [self.tokens[old] for old in keep]
        self.depths = [self.depths[old] for old in keep]
        self.parents = [new_id[self.parents[old]] for old in keep]
        self.children = {}
        for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            self.children.setdefault(parent, {})[token] = node
        self.pending = [new_id[old] for old in self.pending if old in new_id]
        self.next_tokens = {new_id[old]: one for old, one in self.next_tokens.items() if old in new_id}
        return new_id

    def clear(self) -> None:
        """Drop all nodes, for example because the adapter changed."""
        self.prune([])


def _keep_slots(stores: list[Tensor], keep: IntArray) -> None:
    """Move the slots ``keep`` (ascending) to the front, one layer at a time to save memory."""
    if not len(keep):
        stores.clear()
    for layer, store in enumerate(stores):
        filled = torch.from_numpy(keep[keep < store.shape[1]])  # pending nodes may have none yet
        stores[layer] = store[:, filled]
