"""Pack a batch as a prefix tree that contains every distinct token in its context once.

Samples of a self-play batch share the rules, the examples, the history and often whole answers. A
:class:`TreePlan` lists the tokens of a forward pass and their parents; it does not depend on any model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from selfplay.learning.sequences import TokenSequence, as_bytes, from_bytes, shared_prefixes

IntArray = NDArray[np.int64]
TOKEN_BITS = 32
"""Bits of a token id."""

HANDY_TOKENS = 512
"""Number of tokens above which a larger forward pass gains nothing (measured on a CPU)."""
REPEAT_SHARE = 16
"""A plan may be cut where the next part repeats at most 1 / 16 of the tokens of the part that ends."""


@dataclass
class TreePlan:
    """Tokens of one forward pass in depth-first order, and the predictions at each.

    The T nodes are in preorder: the descendants of node i are exactly the nodes i+1 .. end_T[i]-1, so j is an
    ancestor of i (or i itself) when ``j <= i < end_T[j]``.

    The C predictions are (node, token) pairs in ascending order, each a distinct continuation of a context.
    Each completion token of each sample has one of the S entries, in the order of the samples and their
    tokens: ``prediction_S`` is its prediction, which samples can share, ``sample_S`` its sample and
    ``offset_S`` its index in that sample's completion. ``temperature`` is the one at which the samples were
    drawn.
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

    @cached_property
    def branch_starts(self) -> IntArray:
        """The nodes whose parent is not the previous node."""
        return np.flatnonzero(self.parents_T != np.arange(-1, self.num_tokens - 1))


def build_plan(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> TreePlan:
    """Pack samples (``prompts[s] + completions[s]``) into one plan; see :func:`plan_of`.

    Prompts must not be empty.
    """
    lengths = [
        (len(prompt), len(completion)) for prompt, completion in zip(prompts, completions, strict=True)
    ]
    samples = [range(before, before + drawn) for before, drawn in lengths]
    return plan_of(
        [TokenSequence(ids, [own]) for ids, own in zip(as_bytes(prompts, completions), samples, strict=True)]
    )


def plan_of(sequences: Sequence[TokenSequence]) -> TreePlan:
    """Pack sequences into one plan. Their samples are numbered in their order through all sequences.

    A sequence ends with a sample, whose last token is predicted but never fed, and begins with a token that
    is in none. The plan does not depend on the order of the sequences: what is fed is sorted, so that
    neighbours share the longest prefixes, and each sequence adds what it does not share with its neighbour.
    Time and memory are linear in the tokens, apart from the sort, which compares whole prefixes at the speed
    of memory.
    """
    alike: dict[bytes, list[int]] = {}
    for number, sequence in enumerate(sequences):
        alike.setdefault(sequence.fed, []).append(number)
    first_sample = np.cumsum([0, *(len(sequence.samples) for sequence in sequences)]).tolist()
    ordered = sorted(alike)
    fed, shared = [from_bytes(one) for one in ordered], shared_prefixes(ordered)
    num_tokens = sum(map(len, fed)) - sum(shared)
    tokens_T, depths_T = np.empty(num_tokens, dtype=np.int64), np.empty(num_tokens, dtype=np.int64)
    parents_T, end_T = np.arange(-1, num_tokens - 1), np.full(num_tokens, num_tokens)
    path = np.empty(max(map(len, fed), default=0), dtype=np.int64)  # the nodes of the sequence, by depth
    nodes, tokens, numbers = list[IntArray](), list[NDArray[np.uint32]](), list[int]()
    start = length = 0
    for key, own, common in zip(ordered, fed, shared, strict=True):
        stop = start + len(own) - common
        end_T[path[common:length]] = start
        tokens_T[start:stop] = own[common:]
        depths_T[start:stop] = np.arange(common, len(own))
        parents_T[start] = path[common - 1] if common else -1
        path[common : len(own)] = np.arange(start, stop)
        start, length = stop, len(own)
        for number in alike[key]:
            ids = from_bytes(sequences[number].ids)
            for sample, drawn in enumerate(sequences[number].samples, first_sample[number]):
                nodes.append(path[drawn.start - 1 : drawn.stop - 1].copy())
                tokens.append(ids[drawn.start : drawn.stop])
                numbers.append(sample)
    lengths = np.array([len(one) for one in nodes], dtype=np.int64)
    sample_S = np.repeat(np.array(numbers, dtype=np.int64), lengths)
    offset_S = np.arange(len(sample_S)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    codes_S = _joined(nodes) << TOKEN_BITS
    codes_S |= _joined(tokens)
    codes_C, prediction_S = np.unique(codes_S, return_inverse=True)
    order_S = np.argsort(sample_S, kind="stable")
    return TreePlan(
        tokens_T=tokens_T,
        parents_T=parents_T,
        depths_T=depths_T,
        end_T=end_T,
        predict_node_C=codes_C >> TOKEN_BITS,
        predict_token_C=codes_C & ((1 << TOKEN_BITS) - 1),
        prediction_S=prediction_S[order_S],
        sample_S=sample_S[order_S],
        offset_S=offset_S[order_S],
    )


def _joined(arrays: Sequence[NDArray[np.integer]]) -> IntArray:
    return np.concatenate(arrays, dtype=np.int64) if arrays else np.empty(0, dtype=np.int64)


def cut_plan(plan: TreePlan) -> list[TreePlan]:
    """Cut a plan where the parts share almost nothing, as between samples without a common prefix.

    A part of at least ``HANDY_TOKENS`` tokens ends where the next one repeats at most 1 / ``REPEAT_SHARE`` of
    its tokens: the ancestors of its first node. Every prediction is in exactly one part. Small parts use the
    caches better and keep their activations; a part may still be too large for one forward pass (see
    ``sections``).
    """
    cuts = [0]
    for begin in plan.branch_starts.tolist():
        size = int(plan.depths_T[cuts[-1]]) + begin - cuts[-1]
        if size >= HANDY_TOKENS and REPEAT_SHARE * int(plan.depths_T[begin]) <= size:
            cuts.append(begin)
    if len(cuts) == 1:
        return [plan]
    by_prediction_S = np.argsort(plan.prediction_S, kind="stable")
    parts = [_subtree(plan, *ends, by_prediction_S) for ends in pairwise([*cuts, plan.num_tokens])]
    return [part for part in parts if len(part.prediction_S)]


def ancestors(plan: TreePlan, node: int) -> IntArray:
    """Return the proper ancestors of ``node``, root first."""
    starts, pieces = np.concatenate([[0], plan.branch_starts]), []
    node = int(plan.parents_T[node])
    while node >= 0:
        start = int(starts[np.searchsorted(starts, node, side="right") - 1])
        pieces.append(np.arange(start, node + 1))
        node = int(plan.parents_T[start])
    return _joined(pieces[::-1])


def _subtree(plan: TreePlan, first: int, stop: int, by_prediction_S: IntArray) -> TreePlan:
    """Return the preorder run ``first .. stop-1`` preceded by the ancestors of ``first``.

    ``by_prediction_S`` is the order of the plan's entries by their predictions.
    """
    above, own = ancestors(plan, first), slice(first, stop)
    moved = len(above) - first
    # An ancestor's number is its depth, because the ancestors are one path.
    own_parents_T = plan.parents_T[own] + moved
    outside = np.flatnonzero(plan.parents_T[own] < first)
    parents = plan.parents_T[first + outside]
    own_parents_T[outside] = np.where(parents < 0, -1, plan.depths_T[parents])
    predictions = slice(*np.searchsorted(plan.predict_node_C, [first, stop]).tolist())
    bounds = np.searchsorted(plan.prediction_S, [predictions.start, predictions.stop], sorter=by_prediction_S)
    entries = np.sort(by_prediction_S[slice(*bounds.tolist())])
    return TreePlan(
        tokens_T=np.concatenate([plan.tokens_T[above], plan.tokens_T[own]]),
        parents_T=np.concatenate([np.arange(-1, len(above) - 1), own_parents_T]),
        depths_T=np.concatenate([np.arange(len(above)), plan.depths_T[own]]),
        end_T=np.minimum(np.concatenate([plan.end_T[above], plan.end_T[own]]), stop) + moved,
        predict_node_C=plan.predict_node_C[predictions] + moved,
        predict_token_C=plan.predict_token_C[predictions],
        prediction_S=plan.prediction_S[entries] - predictions.start,
        sample_S=plan.sample_S[entries],
        offset_S=plan.offset_S[entries],
        temperature=plan.temperature,
    )
