"""The seed tree: run, episode, seat, call. A child seed depends only on its path, never on timing."""

import random
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted  # json.dumps itself takes three times as long
from typing import Any


def derive_seed(seed: int, *path: int | str) -> int:
    """Return the 63-bit seed at ``path`` below ``seed``, the same on every machine and in every process.

    The path is hashed as JSON, so ``("a", "b")`` and ``("a/b",)`` differ, and so do ``(2,)`` and ``("2",)``.
    """
    text = ", ".join([_quoted(one) if isinstance(one, str) else str(one) for one in (seed, *path)])
    return int.from_bytes(blake2b(f"[{text}]".encode(), digest_size=8).digest(), "big") >> 1


def random_state(rng: random.Random) -> list[Any]:
    """Return the generator's state as a JSON-able list, for a checkpoint."""
    version, words, gauss_next = rng.getstate()
    return [version, list(words), gauss_next]


def set_random_state(rng: random.Random, state: list[Any]) -> None:
    """Restore a state of the generator that ``random_state`` returned."""
    version, words, gauss_next = state
    rng.setstate((version, tuple(words), gauss_next))
