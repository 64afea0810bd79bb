"""The seed tree: run, episode, seat, call. A child seed depends only on its path, never on timing."""

import json
from hashlib import blake2b


def derive_seed(seed: int, *path: int | str) -> int:
    """Return the 63-bit seed at ``path`` below ``seed``.

    The same arguments give the same seed on every machine and in every process. Different paths have
    different seeds (except for hash collisions). The path is hashed as JSON, so ``("a", "b")`` and
    ``("a/b",)`` are different paths, and so are ``(2,)`` and ``("2",)``.
    """
    text = json.dumps((seed, *path))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
