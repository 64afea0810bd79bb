"""Token sequences as bytes, whose order and common prefixes numpy and the C library find at memory's speed.

A token has four bytes, the most significant first, so the order of the bytes is that of the ids.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
