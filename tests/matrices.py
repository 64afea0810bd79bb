"""Matrices of cases, of which few run by default."""

from collections.abc import Sequence
from typing import Any

import pytest


def one_of_each(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return all pairs, of which by default each of both runs, and ``first`` also with one same other."""
    by_default = {(one, 0) for one in range(len(first))}
    by_default |= {(turn % len(first), turn % len(second)) for turn in range(max(len(first), len(second)))}
    return [
        pytest.param(one, other, marks=() if (row, column) in by_default else pytest.mark.slow)
        for row, one in enumerate(first)
        for column, other in enumerate(second)
    ]


def first_of(values: Sequence[Any], count: int = 1) -> list[Any]:
    """Return all values, of which only the first ones run by default."""
    return [*values[:count], *(pytest.param(one, marks=pytest.mark.slow) for one in values[count:])]
