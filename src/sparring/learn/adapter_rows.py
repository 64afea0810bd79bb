"""Which adapters the tokens of a forward pass have, where it has several.

A pass is divided into rows of consecutive tokens. ``fused_lora`` adds to each row the adapters that it names.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor

FEW_TOKENS = 16
"""Adapters with at most this many tokens in a pass are multiplied together: tiny products take longer."""


class Rows(NamedTuple):
    """Consecutive tokens of a forward pass, and the adapters that are added to them.

    ``others_TN`` says which of the adapters are not a token's; ``None`` if all tokens have the only one.
    ``states`` are other numbers when an adapter's weights have changed.
    """

    adapters: tuple[str, ...]
    states: tuple[int, ...]
    start: int
    stop: int
    others_TN: Tensor | None = None


class AdapterRows:
    """The rows of passes with several adapters.

    Args:
        layers: the adapted layers.
        device: device of their inputs.
    """

    def __init__(self, layers: Sequence[Linear], device: torch.device) -> None:
        self._layers = layers
        self._device = device
        self._shapes: dict[str, tuple[Any, ...]] = {}
        self._weights: dict[str, list[Tensor]] = {}
        self._finite: dict[str, tuple[int, bool]] = {}

    def of(self, parts: Sequence[tuple[str, int]]) -> tuple[Rows, ...]:
        """Return the rows of a pass in which adapters have these numbers of tokens, one after the other.

        Neighbours with few tokens and equal shapes share rows. Those whose weights are not numbers share
        none: what is not a number stays so when it is multiplied by the other's zeros.
        """
        rows: list[Rows] = []
        start = 0
        for (shape, share), group in groupby(parts, lambda part: (self._shape(part[0]), self._share(*part))):
            members = list(group)
            stop = start + sum(count for _, count in members)
            if any(shape) and share:
                rows.append(self._shared(members, start, stop))
            elif any(shape):
                ends = accumulate((count for _, count in members), initial=start)
                for (name, _), places in zip(members, pairwise(ends), strict=True):
                    rows.append(Rows((name,), (self._state(name),), *places))
            start = stop
        return tuple(rows)

    def _shared(self, members: list[tuple[str, int]], start: int, stop: int) -> Rows:
        names = tuple(dict.fromkeys(name for name, _ in members))
        owners = [name for name, count in members for _ in range(count)]
        others_TN = torch.tensor([[name != one for name in names] for one in owners], device=self._device)
        return Rows(names, tuple(map(self._state, names)), start, stop, others_TN)

    def _share(self, name: str, tokens: int) -> bool:
        """Return whether an adapter with this number of tokens may share rows."""
        if tokens > FEW_TOKENS:
            return False
        state = self._state(name)
        if self._finite.get(name, (None, False))[0] != state:
            self._finite[name] = (state, all(bool(one.isfinite().all()) for one in self._weights[name]))
        return self._finite[name][1]

    def _shape(self, name: str) -> tuple[Any, ...]:
        """Return the rank and the scale of an adapter in each layer, ``None`` where it has none."""
        if name not in self._shapes:
            self._shapes[name] = tuple(
                (one.r[name], one.scaling[name]) if name in one.lora_A else None for one in self._layers
            )
        return self._shapes[name]

    def _state(self, name: str) -> int:
        """Return a number that is another one when the adapter's weights have changed."""
        if name not in self._weights:
            adapted = [one for one in self._layers if name in one.lora_A]
            self._weights[name] = [
                weights[name].weight for one in adapted for weights in (one.lora_A, one.lora_B)
            ]
        return sum(weight._version for weight in self._weights[name])
