"""Draw tokens: independent draws from next-token distributions, each with its own seed.

A draw is an inversion: the token at which the sum of the probabilities exceeds a uniform number. The
vocabulary is read once, where the logits are; only the sums of its blocks, in single precision, leave the
device, and a draw reads one block. Hidden states are kept for all contexts, logits, which are some hundred
times larger, for recent ones: they are computed again without a pass through the layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparring.core import SparringError
from sparring.core.pass_sizes import ROWS_AT_ONCE, STORED_LOGITS_BYTES
from sparring.engine.answering import Shaping

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GREEDY_BELOW = 1e-6
"""Lower temperatures count as 0, because logits divided by them would overflow."""
HIGHEST = 1e30
"""Higher temperatures count as this one, whose distributions are uniform in float32."""
NOT_NUMBERS = "the model's logits are not numbers; its weights are damaged"
BLOCK = 512
"""Tokens of the vocabulary whose probabilities are added up."""
BYTES_AT_ONCE = 2**20
"""Logits that a CPU reads together, so that they stay in its cache from one operation to the next."""


def uniforms(seeds_M: NDArray[np.uint64], offsets_M: NDArray[np.uint64]) -> FloatArray:
    """Return one uniform number in [0, 1) for each (call seed, token number) pair. The generator is
    counter-based (SplitMix64, Steele et al. 2014), so a draw does not depend on others."""
    z = seeds_M + (offsets_M + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    uniform_M: FloatArray = (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return uniform_M


class Distributions:
    """The next-token distributions of N contexts with ``logits_NV`` in float32, kept and not copied. Below
    ``GREEDY_BELOW``, the most likely token has probability 1. Methods raise SparringError where logits are
    not numbers.
    """

    def __init__(self, logits_NV: Tensor, temperature: float) -> None:
        self.logits_NV = logits_NV
        # The sums of a greedy distribution are those at temperature 1; they show whether logits are numbers.
        self.temperature = 1.0 if temperature < GREEDY_BELOW else min(temperature, HIGHEST)
        rows = logits_NV.shape[0]
        if logits_NV.device.type == "cpu":
            rows = max(1, BYTES_AT_ONCE // (logits_NV.shape[1] * logits_NV.element_size()))
        read = [self._read(some_nV) for some_nV in torch.split(logits_NV, rows)]
        self._most_N = torch.cat([most_n for most_n, _ in read]).cpu()
        self._best_N = logits_NV.argmax(-1).cpu() if temperature < GREEDY_BELOW else None
        self._cumulative_NB = torch.cat([sums_nB for _, sums_nB in read]).cpu().double().cumsum(-1)
        self._usable_N = self._cumulative_NB[:, -1].isfinite()

    def usable(self, rows_M: IntArray) -> NDArray[np.bool_]:
        """Return whether the logits of ``rows_M`` are numbers; nothing can be drawn from the other rows."""
        usable_M: NDArray[np.bool_] = self._usable_N[torch.from_numpy(rows_M)].numpy()
        return usable_M

    def _read(self, logits_nV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest logit of each row, and the sums by block of exp((logit - largest) /
        temperature)."""
        most_n = logits_nV.amax(-1)
        weights_nV = logits_nV - most_n[:, None]
        if self.temperature != 1:
            weights_nV /= self.temperature
        weights_nV.exp_()
        whole = weights_nV.shape[1] // BLOCK * BLOCK
        sums_nB = weights_nV[:, :whole].view(len(most_n), -1, BLOCK).sum(-1)
        if whole < weights_nV.shape[1]:
            sums_nB = torch.cat([sums_nB, weights_nV[:, whole:].sum(-1, keepdim=True)], -1)
        return most_n, sums_nB

    def draw(self, rows_M: IntArray, uniforms_M: FloatArray) -> IntArray:
        """Return one token for each uniform number, from the distributions ``rows_M``, by inversion."""
        rows = self._checked(rows_M)
        if self._best_N is not None:
            best_M: IntArray = self._best_N[rows].numpy()
            return best_M
        cumulative_MB = self._cumulative_NB[rows]
        target_M1 = torch.from_numpy(uniforms_M)[:, None] * cumulative_MB[:, -1:]
        block_M1 = torch.searchsorted(cumulative_MB, target_M1, right=True)
        before_M1 = cumulative_MB.gather(1, (block_M1 - 1).clamp(min=0)).where(block_M1 > 0, 0.0)
        tokens_MK = block_M1 * BLOCK + torch.arange(BLOCK)
        inside_MK = before_M1 + self._weights(rows, tokens_MK).cumsum(-1)
        place_M1 = torch.searchsorted(inside_MK, target_M1, right=True)
        # Sums of single weights may end below the block's sum; no token after the last possible one is meant.
        last_M1 = torch.searchsorted(inside_MK, inside_MK[:, -1:].contiguous())
        token_M: IntArray = (block_M1 * BLOCK + place_M1.minimum(last_M1))[:, 0].numpy()
        return token_M

    def logprobs(self, rows_M: IntArray, tokens_M: IntArray) -> list[float]:
        """Return the log-probability of one token under each of the distributions ``rows_M``."""
        rows, tokens_M1 = self._checked(rows_M), torch.from_numpy(tokens_M)[:, None]
        values: list[float] = self._logprobs(rows, tokens_M1)[:, 0].tolist()
        return values

    def likeliest(self, rows_M: IntArray, count: int) -> list[list[tuple[int, float]]]:
        """Return at most ``count`` possible tokens of each of ``rows_M`` with their log-probabilities,
        falling."""
        rows = self._checked(rows_M)
        on_device = self.logits_NV[rows.to(self.logits_NV.device)]
        tokens_MK = on_device.topk(min(count, on_device.shape[-1])).indices.cpu()
        logprobs_MK = self._logprobs(rows, tokens_MK).tolist()
        return [
            [(token, value) for token, value in zip(tokens, values, strict=True) if value > -np.inf]
            for tokens, values in zip(tokens_MK.tolist(), logprobs_MK, strict=True)
        ]

    def _checked(self, rows_M: IntArray) -> Tensor:
        rows = torch.from_numpy(rows_M)
        if not self._usable_N[rows].all():
            raise SparringError(NOT_NUMBERS)
        return rows

    def _logprobs(self, rows: Tensor, tokens_MK: Tensor) -> Tensor:
        if self._best_N is not None:
            certain_MK = self._best_N[rows, None] == tokens_MK
            return torch.where(certain_MK, 0.0, -np.inf)
        return (self._scores(rows, tokens_MK) - self._cumulative_NB[rows, -1:].log()).float()

    def _weights(self, rows: Tensor, tokens_MK: Tensor) -> Tensor:
        size = self.logits_NV.shape[1]
        return self._scores(rows, tokens_MK.clamp(max=size - 1)).exp().where(tokens_MK < size, 0.0)

    def _scores(self, rows: Tensor, tokens_MK: Tensor) -> Tensor:
        device = self.logits_NV.device
        logits_MK = self.logits_NV[rows[:, None].to(device), tokens_MK.to(device)].cpu()
        return (logits_MK.double() - self._most_N[rows, None]) / self.temperature


@dataclass(eq=False)
class NextToken:
    """The hidden state after a context, and its row in stored logits."""

    hidden_D: Tensor
    logits: "Logits | None" = None
    row: int = 0


TEMPERATURES = 4
"""Temperatures of which a row of logits keeps distributions."""


@dataclass(eq=False)
class Logits:
    """The logits after N contexts, and their distributions at the temperatures that were asked for last."""

    contexts: Sequence[NextToken]
    logits_NV: Tensor
    _distributions: dict[float, Distributions] = field(default_factory=dict)

    def at(self, temperature: float) -> Distributions:
        """Return the distributions at a temperature."""
        found = self._distributions.pop(temperature, None) or Distributions(self.logits_NV, temperature)
        if len(self._distributions) == TEMPERATURES:
            del self._distributions[next(iter(self._distributions))]
        self._distributions[temperature] = found  # the most recently used is the last
        return found


class StoredLogits:
    """The logits that were used last, in ``STORED_LOGITS_BYTES`` or one computation; ``logits_of`` is the
    output layer, hidden_ND -> logits_NV in float32."""

    def __init__(self, logits_of: Callable[[Tensor], Tensor]) -> None:
        self._logits_of = logits_of
        self._stored: dict[Logits, None] = {}  # the least recently used first

    def of(self, contexts: Sequence[NextToken]) -> Iterator[tuple[Logits, list[int]]]:
        """Yield logits with the indices of the contexts that have a row in them, until the next are asked
        for."""
        stored: dict[Logits, list[int]] = {}
        new: dict[NextToken, list[int]] = {}
        for index, one in enumerate(contexts):
            if one.logits is None:
                new.setdefault(one, []).append(index)
            else:
                stored.setdefault(one.logits, []).append(index)
        for logits, indices in stored.items():
            del self._stored[logits]
            self._stored[logits] = None  # the most recently used
            yield logits, indices
        for first in range(0, len(new), ROWS_AT_ONCE):
            some = list(new)[first : first + ROWS_AT_ONCE]
            yield self._compute(some), [index for one in some for index in new[one]]

    def _compute(self, contexts: Sequence[NextToken]) -> Logits:
        logits = Logits(contexts, self._logits_of(torch.stack([one.hidden_D for one in contexts])))
        for row, one in enumerate(contexts):
            one.logits, one.row = logits, row
        self._stored[logits] = None
        while len(self._stored) > 1 and self._bytes() > STORED_LOGITS_BYTES:
            oldest = next(iter(self._stored))
            del self._stored[oldest]
            for one in oldest.contexts:
                one.logits = None
        return logits

    def _bytes(self) -> int:
        return sum(logits.logits_NV.nbytes for logits in self._stored)


def shaped_logits(
    logits_MV: Tensor, temperature: float, shaping: Shaping, contexts_M: Sequence[Sequence[int]]
) -> Tensor:
    """Return a copy of logits, not divided by the temperature, with minus infinity for tokens that are not
    drawn. ``contexts_M`` are the ids before each row.

    As in vLLM: bias, penalty, temperature, then ``min_p``, ``top_k`` (ties are kept) and ``top_p``, each of
    what the one before has kept.
    """
    logits_MV, sampling = logits_MV.clone(), shaping.sampling
    for token, bias in shaping.logit_bias:
        logits_MV[:, token] += bias
    if sampling.repetition_penalty != 1:
        _penalise(logits_MV, sampling.repetition_penalty, contexts_M)
    if temperature < GREEDY_BELOW:
        return logits_MV  # the most likely token is always kept
    if sampling.min_p > 0:
        probability_MV = (logits_MV / temperature).softmax(-1)
        least_M1 = sampling.min_p * probability_MV.amax(-1, keepdim=True)
        logits_MV.masked_fill_(probability_MV < least_M1, -torch.inf)
    if 0 < sampling.top_k < logits_MV.shape[-1]:
        last_M1 = logits_MV.topk(sampling.top_k).values[:, -1:]
        logits_MV.masked_fill_(logits_MV < last_M1, -torch.inf)
    if sampling.top_p < 1:
        falling_MV, tokens_MV = logits_MV.sort(descending=True, stable=True)
        probability_MV = (falling_MV / temperature).softmax(-1, dtype=torch.float64)
        before_MV = probability_MV.cumsum(-1) - probability_MV
        falling_MV.masked_fill_(before_MV >= sampling.top_p, -torch.inf)
        logits_MV.scatter_(-1, tokens_MV, falling_MV)
    return logits_MV


def _penalise(logits_MV: Tensor, penalty: float, contexts_M: Sequence[Sequence[int]]) -> None:
    """Divide the positive logits of the tokens that are in a row's context, and multiply the others."""
    for logits_V, context in zip(logits_MV, contexts_M, strict=True):
        seen_K = torch.tensor(sorted({*context}), dtype=torch.long, device=logits_MV.device)
        logits_K = logits_V[seen_K]
        logits_V[seen_K] = torch.where(logits_K > 0, logits_K / penalty, logits_K * penalty)
