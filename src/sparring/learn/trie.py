"""Pack a batch as a prefix tree that contains every distinct token in its context once.

Samples of a self-play batch share the rules, the examples, the history and often whole answers. A
:class:`TreePlan` lists the tokens of a forward pass and their parents; it does not depend on any model.

Token sequences are bytes, whose order and common prefixes numpy and the C library find at memory's
speed. A token has four bytes, the most significant first, so the order of the bytes is that of the ids.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

TOKEN = np.dtype(">u4")


@dataclass(frozen=True)
class TokenSequence:
    """Token ids as bytes, and the ranges of them that are samples: drawn, after what is before them."""

    ids: bytes
    samples: list[range]

    @property
    def fed(self) -> bytes:
        """What a model reads to predict every sample: all but the last token, if that one was drawn."""
        return self.ids[: -TOKEN.itemsize] if self.samples[-1] else self.ids


def as_bytes(heads: Sequence[Sequence[int]], tails: Sequence[Sequence[int]]) -> Iterator[bytes]:
    """Yield the bytes of each head and tail, joined. One head object in many places is read once."""
    known: dict[int, bytes] = {}
    for head, tail in zip(heads, tails, strict=True):
        if id(head) not in known:
            known[id(head)] = bytes_of(head)
        yield known[id(head)] + bytes_of(tail)


def bytes_of(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes."""
    numbers = array("I", ids)  # four times as fast as numpy, which looks at every element's type
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def from_bytes(sequence: bytes) -> NDArray[np.uint32]:
    """Return the token ids of a sequence, without a copy."""
    return np.frombuffer(sequence, dtype=TOKEN)


def shared_prefixes(ordered: Sequence[bytes]) -> list[int]:
    """Return how many first tokens each sequence shares with the one before it; 0 for the first."""
    ids = [from_bytes(one) for one in ordered]
    return [0] * bool(ids) + [_shared(one, other) for one, other in pairwise(ids)]


def _shared(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length


IntArray = NDArray[np.int64]
TOKEN_BITS = 32
HANDY_TOKENS = 512
"""Number of tokens above which a larger forward pass gains nothing (measured on a CPU)."""
REPEAT_SHARE = 16
"""A plan may be cut where the next part repeats at most 1 / 16 of the tokens of the part that ends."""


@dataclass
class TreePlan:
    """Tokens of one forward pass in depth-first order, and the predictions at each.

    The descendants of node i are exactly the nodes i+1 .. end_T[i]-1, so j is an ancestor of i (or i itself)
    when ``j <= i < end_T[j]``. The C predictions are (node, token) pairs in ascending order, each a distinct
    continuation of a context. Each completion token of each sample has one of the S entries, in the order of
    the samples and their tokens: ``prediction_S`` is its prediction, which samples can share, ``sample_S``
    its sample and ``offset_S`` its index in that sample's completion.
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

    def only(self, chosen_S: NDArray[np.bool_]) -> Self:
        """Return a plan that feeds the same tokens and predicts only some of the S tokens."""
        kept_C, prediction_S = np.unique(self.prediction_S[chosen_S], return_inverse=True)
        return replace(
            self,
            predict_node_C=self.predict_node_C[kept_C],
            predict_token_C=self.predict_token_C[kept_C],
            prediction_S=prediction_S,
            sample_S=self.sample_S[chosen_S],
            offset_S=self.offset_S[chosen_S],
        )

    @cached_property
    def branch_starts(self) -> IntArray:
        """The nodes whose parent is not the previous node."""
        return np.flatnonzero(self.parents_T != np.arange(-1, self.num_tokens - 1))


def build_plan(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> TreePlan:
    """Pack samples (``prompts[s] + completions[s]``) into one plan. Prompts must not be empty."""
    ordered = _Ordered.of(samples_of(prompts, completions))
    return ordered.plan(0, len(ordered.fed))


def samples_of(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[TokenSequence]:
    """Return samples as sequences of tokens."""
    lengths = [
        (len(prompt), len(completion)) for prompt, completion in zip(prompts, completions, strict=True)
    ]
    samples = [range(before, before + drawn) for before, drawn in lengths]
    return [
        TokenSequence(ids, [own]) for ids, own in zip(as_bytes(prompts, completions), samples, strict=True)
    ]


def plans_of(sequences: Sequence[TokenSequence]) -> list[TreePlan]:
    """Pack sequences into plans that share almost nothing, as between samples without a common prefix.

    A sequence ends with a sample, whose last token is predicted but never fed. Samples are numbered in their
    order through all sequences. Time and memory are linear in the tokens, apart from the sort, which compares
    whole prefixes at the speed of memory. A plan of at least ``HANDY_TOKENS`` tokens ends where the next
    sequence repeats at most 1 / ``REPEAT_SHARE`` of its tokens; it may still be too large for one forward
    pass.
    """
    ordered = _Ordered.of(sequences)
    cuts, size = [0], 0
    for place, common in enumerate(ordered.shared):
        branches = place and common < len(ordered.fed[place - 1])
        if branches and size >= HANDY_TOKENS and REPEAT_SHARE * common <= size:
            cuts.append(place)
            size = common
        size += len(ordered.fed[place]) - common
    return [ordered.plan(first, stop) for first, stop in pairwise([*cuts, len(ordered.fed)])]


@dataclass(frozen=True)
class _Ordered:
    """What is fed of some sequences, sorted and without repetitions.

    ``shared`` is the number of first tokens that each shares with the one before it; ``drawn`` has the number
    of each sample that ends in it, its place there and its tokens.
    """

    fed: list[NDArray[np.uint32]]
    shared: list[int]
    drawn: list[list[tuple[int, range, NDArray[np.uint32]]]]

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence]) -> Self:
        drawn_of: defaultdict[bytes, list[tuple[int, range, NDArray[np.uint32]]]] = defaultdict(list)
        numbers = count()
        for sequence in sequences:
            ids = from_bytes(sequence.ids)
            drawn_of[sequence.fed] += [
                (next(numbers), drawn, ids[drawn.start : drawn.stop]) for drawn in sequence.samples
            ]
        ordered = sorted(drawn_of)
        return cls(
            [from_bytes(one) for one in ordered], shared_prefixes(ordered), [drawn_of[one] for one in ordered]
        )

    def plan(self, first: int, stop: int) -> TreePlan:
        """Return the plan of the sequences from ``first`` to before ``stop``."""
        fed, shared = self.fed[first:stop], [0, *self.shared[first + 1 : stop]]
        num_tokens = sum(map(len, fed)) - sum(shared)
        tokens_T, depths_T = np.empty(num_tokens, dtype=np.int64), np.empty(num_tokens, dtype=np.int64)
        parents_T, end_T = np.arange(-1, num_tokens - 1), np.full(num_tokens, num_tokens)
        path = np.empty(max(map(len, fed), default=0), dtype=np.int64)  # the nodes of the sequence, by depth
        nodes, tokens, numbers = list[IntArray](), list[NDArray[np.uint32]](), list[int]()
        begin = length = 0
        for own, common, drawn_here in zip(fed, shared, self.drawn[first:stop], strict=True):
            end = begin + len(own) - common
            end_T[path[common:length]] = begin
            tokens_T[begin:end] = own[common:]
            depths_T[begin:end] = np.arange(common, len(own))
            parents_T[begin] = path[common - 1] if common else -1
            path[common : len(own)] = np.arange(begin, end)
            begin, length = end, len(own)
            for number, drawn, ids in drawn_here:
                nodes.append(path[drawn.start - 1 : drawn.stop - 1].copy())
                tokens.append(ids)
                numbers.append(number)
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


def ancestors(plan: TreePlan, node: int) -> IntArray:
    """Return the proper ancestors of ``node``, root first."""
    starts, pieces = np.concatenate([[0], plan.branch_starts]), []
    node = int(plan.parents_T[node])
    while node >= 0:
        start = int(starts[np.searchsorted(starts, node, side="right") - 1])
        pieces.append(np.arange(start, node + 1))
        node = int(plan.parents_T[start])
    return _joined(pieces[::-1])
