"""Draw tokens: many independent draws from one distribution, each with its own seed.

``generation.Decoder`` keeps the log-probability of each drawn token.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from selfplay.core import SelfplayError

FloatArray = NDArray[np.float64]

GREEDY_BELOW = 1e-6
"""Lower temperatures count as 0, because dividing log-probabilities by them would overflow."""


def uniforms(seeds_M: NDArray[np.uint64], offsets_M: NDArray[np.uint64]) -> FloatArray:
    """Return one uniform number in [0, 1) for each (call seed, token number) pair.

    The generator is counter-based (SplitMix64, Steele et al. 2014), so a draw depends only on its seed and
    its index, not on other draws.
    """
    z = seeds_M + (offsets_M + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    uniform_M: FloatArray = (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return uniform_M


class Distribution:
    """The next-token distribution of one context at one temperature.

    Args:
        logprobs_V: log-probabilities at temperature 1.
        temperature: below ``GREEDY_BELOW``, the most likely token has log-probability 0.

    Raises:
        SelfplayError: the log-probabilities are not numbers.
    """

    def __init__(self, logprobs_V: NDArray[np.float32], temperature: float) -> None:
        if temperature < GREEDY_BELOW:
            self.logprobs_V = np.full_like(logprobs_V, -np.inf)
            self.logprobs_V[int(logprobs_V.argmax())] = 0.0
        elif temperature == 1:
            self.logprobs_V = logprobs_V
        else:
            scaled_V = logprobs_V.astype(np.float64) / temperature
            scaled_V -= scaled_V.max()
            self.logprobs_V = (scaled_V - np.log(np.exp(scaled_V).sum())).astype(np.float32)
        # Computed by torch, which is more than twice as fast as numpy here.
        probability_V = torch.from_numpy(self.logprobs_V).exp()
        self._cumulative_V: FloatArray = probability_V.cumsum(0, dtype=torch.float64).numpy()
        if not np.isfinite(self._cumulative_V[-1]):
            raise SelfplayError("the model's log-probabilities are not numbers; its weights are damaged")

    def draw(self, uniforms_M: FloatArray) -> NDArray[np.int64]:
        """Return one token for each uniform number, by inversion."""
        scaled_M = uniforms_M * self._cumulative_V[-1]
        tokens_M: NDArray[np.int64] = np.searchsorted(self._cumulative_V, scaled_M, side="right")
        return tokens_M
