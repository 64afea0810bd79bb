"""TreeCache: keys and values of all tokens computed under one adapter version, with each context once.

Nodes are tokens in their context, each with a slot in a store that the caches of an engine share. A node is
*pending* until a forward pass has filled its slot.
"""

from dataclasses import dataclass, field

import numpy as np

from sparring.engine.key_store import KeyStore
from sparring.engine.sampling import IntArray, NextToken

ROOT = -1


@dataclass
class TreeCache:
    """The cache of one adapter version, whose keys and values are in ``store``."""

    store: KeyStore = field(default_factory=KeyStore)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    children: dict[int, dict[int, int]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    next_tokens: dict[int, NextToken] = field(default_factory=dict)
    _paths: dict[int, IntArray] = field(default_factory=dict)
    _older_paths: dict[int, IntArray] = field(default_factory=dict)
    _slots: IntArray = field(default_factory=lambda: np.empty(64, dtype=np.int64))

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
            if child == len(self._slots):
                self._slots = np.concatenate([self._slots, np.empty_like(self._slots)])
            self._slots[child] = self.store.take()
            node = child
        return node

    def path(self, node: int) -> IntArray:
        """Return the nodes from the first token of the context to ``node``; do not change the array. A
        context that has grown since its path was asked for, up to one pass ago, is not followed to its
        beginning again.
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

    def slots_of(self, nodes: IntArray) -> IntArray:
        """Return the nodes' slots in the store."""
        return self._slots[nodes]

    def prune(self, nodes: list[int]) -> dict[int, int]:
        """Keep only ``nodes`` and their ancestors; return new ids by old ids."""
        paths = [self.path(node) for node in dict.fromkeys(nodes)]
        self._paths, self._older_paths = {}, {}
        keep = np.unique(np.concatenate(paths)) if paths else np.empty(0, dtype=np.int64)
        new_id = {ROOT: ROOT} | {int(old): new for new, old in enumerate(keep)}
        slots = self._slots[: len(self)]
        self._slots = np.concatenate([slots[keep], np.empty(max(64, len(keep)), dtype=np.int64)])
        self.store.give_back(np.delete(slots, keep).tolist())
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
