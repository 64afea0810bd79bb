"""Pack a batch as a prefix tree that contains every distinct token in its context once.

Samples of a self-play batch share the rules, the examples, the history and often whole answers. A
:class:`TreePlan` lists the tokens of a forward pass and their parents; it does not depend on any model.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

HANDY_TOKENS = 512
"""Number of tokens above which a larger forward pass gains nothing (measured on a CPU)."""
REPEAT_SHARE = 16
"""A piece may be cut early if the next piece repeats at most 1 / 16 of its tokens."""


@dataclass
class TreePlan:
    """Tokens of one forward pass in depth-first order, and the predictions at each.

    The T nodes are in preorder: the descendants of node i are exactly the nodes i+1 .. end_T[i]-1, so j is an
    ancestor of i (or i itself) when ``j <= i < end_T[j]``.

    The C predictions are (node, token) pairs, each a distinct continuation of a context. Each completion
    token of each sample has one of the S entries: ``prediction_S`` is its prediction, which samples can
    share, ``sample_S`` its sample and ``offset_S`` its index in that sample's completion. ``temperature`` is
    the one at which the samples were drawn.
    """

    tokens_T: IntArray
    parents_T: IntArray
    depths_T: IntArray
    end_T: IntArray
    predict_node_C: IntArray
    predict_token_C: IntArray
    prediction_S: IntArray
    sample_S: IntArray
    offset_S: IntArray
    temperature: float = 1.0

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens in the forward pass."""
        return len(self.tokens_T)


class _Trie:
    """Nodes in order of insertion; a node is a token that must be fed because another token follows it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: list[dict[int, int]] = []
        self.roots: dict[int, int] = {}

    def insert(self, ids: list[int], start: int = -1) -> int:
        """Follow ``ids`` below node ``start``, creating missing nodes, and return the last node."""
        node = start
        for token in ids:
            siblings = self.roots if node < 0 else self.children[node]
            found = siblings.get(token)
            if found is None:
                found = len(self.tokens)
                siblings[token] = found
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(0 if node < 0 else self.depths[node] + 1)
                self.children.append({})
            node = found
        return node

    def preorder(self) -> list[int]:
        """Return all nodes, parents before children, with each subtree contiguous."""
        order: list[int] = []
        stack = list(reversed(self.roots.values()))
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(self.children[node].values()))
        return order


def build_plan(prompts: list[list[int]], completions: list[list[int]]) -> TreePlan:
    """Pack samples (``prompts[s] + completions[s]``) into one plan.

    Prompts must not be empty. The last token of a completion is predicted but never fed.
    """
    trie = _Trie()
    prompt_ends: dict[tuple[int, ...], int] = {}
    pairs: dict[tuple[int, int], int] = {}
    prediction, sample, offset = [], [], []
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        key = tuple(prompt)
        node = prompt_ends.get(key)
        if node is None:
            node = prompt_ends[key] = trie.insert(prompt)
        for position, token in enumerate(completion):
            if position:
                node = trie.insert([completion[position - 1]], node)
            prediction.append(pairs.setdefault((node, token), len(pairs)))
            sample.append(index)
            offset.append(position)
    return _finish(trie, pairs, prediction, sample, offset)


def _finish(
    trie: _Trie,
    pairs: dict[tuple[int, int], int],
    prediction: list[int],
    sample: list[int],
    offset: list[int],
) -> TreePlan:
    order = np.array(trie.preorder(), dtype=np.int64)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parents = np.array(trie.parents, dtype=np.int64)[order]
    parents = np.where(parents < 0, -1, rank[parents])
    nodes_C = np.array([node for node, _ in pairs], dtype=np.int64)
    return TreePlan(
        tokens_T=np.array(trie.tokens, dtype=np.int64)[order],
        parents_T=parents,
        depths_T=np.array(trie.depths, dtype=np.int64)[order],
        end_T=_subtree_ends(parents),
        predict_node_C=rank[nodes_C] if len(nodes_C) else nodes_C,
        predict_token_C=np.array([token for _, token in pairs], dtype=np.int64),
        prediction_S=np.array(prediction, dtype=np.int64),
        sample_S=np.array(sample, dtype=np.int64),
        offset_S=np.array(offset, dtype=np.int64),
    )


def _subtree_ends(parents_T: IntArray) -> IntArray:
    end_T = np.arange(1, len(parents_T) + 1)
    for node in range(len(parents_T) - 1, -1, -1):
        parent = parents_T[node]
        if parent >= 0:
            end_T[parent] = max(end_T[parent], end_T[node])
    return end_T


def branch_starts(plan: TreePlan) -> IntArray:
    """Return the nodes whose parent is not the previous node; a plan may be cut before each of them."""
    previous = np.arange(-1, plan.num_tokens - 1)
    return np.flatnonzero(plan.parents_T != previous) if plan.num_tokens else previous


def cut_plan(plan: TreePlan, max_tokens: int) -> list[TreePlan]:
    """Cut a plan into subtrees of at most ``max_tokens`` fed tokens that repeat only their ancestors.

    A root-to-leaf path that is longer than that is not cut. Every prediction is in exactly one piece. A piece
    of at least ``HANDY_TOKENS`` tokens ends early where the next piece would repeat almost none of it, as
    between samples without a common prefix: small plans use the caches better and keep their activations.
    """
    starts = [*branch_starts(plan).tolist(), plan.num_tokens]
    if starts[0] != 0:
        starts.insert(0, 0)
    pieces, first = [], 0
    for begin, end in pairwise(starts):
        if begin == first:
            continue
        size = int(plan.depths_T[first]) + begin - first
        cheap = size >= HANDY_TOKENS and REPEAT_SHARE * int(plan.depths_T[begin]) <= size
        if cheap or size + end - begin > max_tokens:
            pieces.append(_subtree(plan, first, begin))
            first = begin
    if first == 0:
        return [plan]
    pieces.append(_subtree(plan, first, plan.num_tokens))
    return [piece for piece in pieces if len(piece.prediction_S)]


def ancestors(plan: TreePlan, node: int) -> IntArray:
    """Return the proper ancestors of ``node``, root first."""
    path = []
    parent = int(plan.parents_T[node])
    while parent >= 0:
        path.append(parent)
        parent = int(plan.parents_T[parent])
    return np.array(path[::-1], dtype=np.int64)


def _subtree(plan: TreePlan, first: int, stop: int) -> TreePlan:
    """Return the preorder run ``first .. stop-1`` preceded by the ancestors of ``first``."""
    nodes = np.concatenate([ancestors(plan, first), np.arange(first, stop)])
    new_index = np.full(plan.num_tokens + 1, -1, dtype=np.int64)
    new_index[nodes] = np.arange(len(nodes))
    parents = new_index[plan.parents_T[nodes]]
    kept_C = (plan.predict_node_C >= first) & (plan.predict_node_C < stop)
    new_prediction = np.cumsum(kept_C) - 1
    kept_S = kept_C[plan.prediction_S]
    return TreePlan(
        tokens_T=plan.tokens_T[nodes],
        parents_T=parents,
        depths_T=plan.depths_T[nodes],
        end_T=_subtree_ends(parents),
        predict_node_C=new_index[plan.predict_node_C[kept_C]],
        predict_token_C=plan.predict_token_C[kept_C],
        prediction_S=new_prediction[plan.prediction_S[kept_S]],
        sample_S=plan.sample_S[kept_S],
        offset_S=plan.offset_S[kept_S],
        temperature=plan.temperature,
    )
