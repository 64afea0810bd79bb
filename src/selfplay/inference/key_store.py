"""KeyStore: the keys and values of all cached tokens, of every adapter version, in one tensor per layer."""

from collections.abc import Iterable

import torch
from torch import Tensor


class KeyStore:
    """Rows of keys and values by slot. Slots are taken and given back; the tensors grow by doubling.

    Their memory is freed once no slot is taken.
    """

    def __init__(self) -> None:
        self._size = 0
        self._free: list[int] = []
        self._rows: list[Tensor] = []  # rows_SGf of each layer; f are a key's d and a value's e numbers
        self._key_sizes: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(rows.nbytes for rows in self._rows)

    def take(self) -> int:
        """Return a slot that is not taken."""
        if self._free:
            return self._free.pop()
        self._size += 1
        return self._size - 1

    def give_back(self, slots: Iterable[int]) -> None:
        """Free slots for others."""
        self._free.extend(sorted(slots, reverse=True))
        if len(self._free) == self._size:
            self._size = 0
            for kept in (self._free, self._rows, self._key_sizes):
                kept.clear()

    def write(self, layer: int, slots_T: Tensor, key_GTd: Tensor, value_GTe: Tensor) -> None:
        """Fill slots of one layer."""
        new_TGf = torch.cat([key_GTd, value_GTe], dim=-1).transpose(0, 1)
        if layer == len(self._rows):
            self._rows.append(new_TGf.new_empty(0, *new_TGf.shape[1:]))
            self._key_sizes.append(key_GTd.shape[-1])
        rows_SGf = self._rows[layer]
        if len(rows_SGf) < self._size:
            grown = rows_SGf.new_empty(max(self._size, 2 * len(rows_SGf)), *rows_SGf.shape[1:])
            grown[: len(rows_SGf)] = rows_SGf
            self._rows[layer] = rows_SGf = grown
        rows_SGf.index_copy_(0, slots_T, new_TGf)

    def read(self, layer: int, slots_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Return (key_BGKd, value_BGKe) of one layer."""
        rows_SGf, d = self._rows[layer], self._key_sizes[layer]
        rows_BGKf = rows_SGf.index_select(0, slots_BK.flatten())
        rows_BGKf = rows_BGKf.view(*slots_BK.shape, *rows_SGf.shape[1:]).transpose(1, 2)
        return rows_BGKf[..., :d], rows_BGKf[..., d:]
