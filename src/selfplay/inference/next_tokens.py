"""What is known of the token after a context: hidden states for all contexts, and logits for recent ones.

A row of logits is as long as the vocabulary, a hidden state some hundred times shorter. Logits that were
dropped are computed again from the hidden states, which takes no pass through the layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfplay.core.pass_sizes import ROWS_AT_ONCE, STORED_LOGITS_BYTES
from selfplay.inference.sampling import Distributions


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
    """The logits that were used last, in ``STORED_LOGITS_BYTES`` or those of one computation if it has more.

    Args:
        logits_of: the model's output layer, hidden_ND -> logits_NV in float32.
    """

    def __init__(self, logits_of: Callable[[Tensor], Tensor]) -> None:
        self._logits_of = logits_of
        self._stored: dict[Logits, None] = {}  # the least recently used first

    def of(self, contexts: Sequence[NextToken]) -> Iterator[tuple[Logits, list[int]]]:
        """Yield logits with the indices of the contexts that have a row in them.

        They may be dropped when the next are asked for.
        """
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
