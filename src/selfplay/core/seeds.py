"""The seed tree: run, episode, seat, call. A child seed depends on its path alone, never on timing."""

from hashlib import blake2b


def derive_seed(seed: int, *path: int | str) -> int:
    """Return the 63-bit seed found at ``path`` below ``seed``.

    The same arguments give the same seed on every machine and in every process.
    """
    text = "/".join((str(seed), *map(str, path)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
