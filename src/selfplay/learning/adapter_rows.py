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

    ``own_TN`` has a 1 where a token has an adapter; ``None`` if all tokens have the only one. ``states`` are
    other numbers when an adapter's weights have changed.
    """

    adapters: tuple[str, ...]
    states: tuple[int, ...]
    start: int
    stop: int
    own_TN: Tensor | None = None


class AdapterRows:
    """The rows of passes with several adapters.

    Args:
        layers: the adapted layers.
        dtype: type of their inputs.
        device: device of their inputs.
    """

    def __init__(self, layers: Sequence[Linear], dtype: torch.dtype, device: torch.device) -> None:
        self._layers = layers
        self._dtype = dtype
        self._device = device
        self._shapes: dict[str, tuple[Any, ...]] = {}
        self._weights: dict[str, list[Tensor]] = {}

    def of(self, parts: Sequence[tuple[str, int]]) -> tuple[Rows, ...]:
        """Return the rows of a pass in which adapters have these numbers of tokens, one after the other.

        Neighbours with few tokens and equal shapes share rows.
        """
        rows: list[Rows] = []
        start = 0
        for (shape, few), group in groupby(parts, lambda part: (self._shape(part[0]), part[1] <= FEW_TOKENS)):
            members = list(group)
            stop = start + sum(count for _, count in members)
            if any(shape) and few:
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
        own = [[name == owner for name in names] for owner in owners]
        own_TN = torch.tensor(own, dtype=self._dtype, device=self._device)
        return Rows(names, tuple(map(self._state, names)), start, stop, own_TN)

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
