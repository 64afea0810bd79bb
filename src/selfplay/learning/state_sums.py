"""Sums over the states in which answers were drawn, from which their mean and their spread follow."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StateSums:
    """The number of states of hidden size D, their sum, and the sum of their squared lengths."""

    count: float
    squares: float
    sum_D: FloatArray

    @classmethod
    def of(cls, states_CD: FloatArray, answers_C: FloatArray) -> Self:
        """Return the sums over states in which so many answers each were drawn."""
        squares_C = (states_CD**2).sum(axis=1)
        return cls(float(answers_C.sum()), float(answers_C @ squares_C), answers_C @ states_CD)

    @classmethod
    def from_array(cls, numbers: FloatArray) -> Self:
        """Return the sums of :meth:`to_array`, or of several such arrays that were added."""
        return cls(float(numbers[0]), float(numbers[1]), numbers[2:])

    def to_array(self) -> FloatArray:
        """Return the sums as an array of D + 2 numbers."""
        return np.array([self.count, self.squares, *self.sum_D])

    @property
    def mean_D(self) -> FloatArray:
        """The mean state."""
        mean_D: FloatArray = self.sum_D / self.count
        return mean_D

    @property
    def spread(self) -> float:
        """The root mean square of the states' distances from their mean."""
        variance = self.squares / self.count - float(self.mean_D @ self.mean_D)
        return float(max(variance, 0.0) ** 0.5)
