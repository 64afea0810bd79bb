"""The state of a random.Random as a plain list, for checkpoints."""

import random
from typing import Any


def random_state(rng: random.Random) -> list[Any]:
    """Return the generator's state as a JSON-able list."""
    version, words, gauss_next = rng.getstate()
    return [version, list(words), gauss_next]


def set_random_state(rng: random.Random, state: list[Any]) -> None:
    """Restore a state of the generator that ``random_state`` returned."""
    version, words, gauss_next = state
    rng.setstate((version, tuple(words), gauss_next))
