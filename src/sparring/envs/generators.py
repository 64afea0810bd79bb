"""The interpreter's global generators, which the code of some games draws from."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_lent_for_good = False


def lend_generators_for_good() -> None:
    """Stop restoring the generators after each call into a game, in a process that only plays games: it takes
    a considerable part of a collector's time."""
    global _lent_for_good
    _lent_for_good = True


@dataclass(frozen=True)
class Generators:
    """The interpreter's global generators from which the code of a game may draw."""

    python: bool
    numpy: bool

    def call(self, seed: int, function: Callable[..., T], *args: Any) -> T:
        """Call ``function`` with these generators seeded; restore them unless they were lent for good."""
        if _lent_for_good:
            self._seed(seed)
            return function(*args)
        state = random.getstate()
        numpy_state = np.random.get_state() if self.numpy else None
        try:
            self._seed(seed)
            return function(*args)
        finally:
            random.setstate(state)
            if numpy_state is not None:
                np.random.set_state(numpy_state)

    def _seed(self, seed: int) -> None:
        random.seed(seed)
        if self.numpy:
            np.random.seed(seed % 2**32)
