"""The hidden states in which a batch's answers were drawn, their mean, and their spread about it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class States:
    """N states of hidden size D after the last norm, and the one in which each of R answers was drawn."""

    hidden_ND: Tensor
    state_of_R: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        """Return no states of no answers."""
        return cls(torch.empty(0, 0), np.empty(0, dtype=np.int64))

    def sums(self) -> "StateSums":
        """Return the sums over the states of all answers."""
        hidden_ND: FloatArray = self.hidden_ND.double().cpu().numpy()
        answers_N = np.bincount(self.state_of_R, minlength=len(hidden_ND)).astype(np.float64)
        squares_N = (hidden_ND**2).sum(axis=1)
        return StateSums(float(answers_N.sum()), float(answers_N @ squares_N), answers_N @ hidden_ND)


@dataclass(frozen=True)
class StateSums:
    """The number of states, the sum of their squared lengths, and the sum of the states."""

    count: float
    squares: float
    sum_D: FloatArray

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
