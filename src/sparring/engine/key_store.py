"""KeyStore: the keys and values of an engine's contexts, which passes copy out or read where they are.

Letters: S slots, G key-value heads, H query heads, d and e the head sizes of keys and values.
"""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

READ_IN_PLACE = frozenset({torch.float32, torch.float64})
"""Types of keys that torch's sparse products take."""


class SlotRows:
    """The slots_BK of B contexts, as torch's sparse products look them up: for every query head of a context,
    K rows of a table that has one for each key-value head and slot."""

    def __init__(self, slots_BK: Tensor) -> None:
        self._slots_BK = slots_BK
        self._known: dict[tuple[int, torch.Size], Tensor] = {}

    def of(self, heads: int, table_GSd: Tensor) -> Tensor:
        """Return a sparse matrix [B H, G S] of zeros at these rows."""
        key = heads, table_GSd.shape[:2]
        if key not in self._known:
            groups, slots = table_GSd.shape[:2]
            batch, keys = self._slots_BK.shape
            head_H1 = torch.arange(heads)[:, None] // (heads // groups)
            rows_BHK = head_H1 * slots + self._slots_BK[:, None]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
                self._known[key] = torch.sparse_csr_tensor(
                    torch.arange(0, rows_BHK.numel() + 1, keys),
                    rows_BHK.flatten(),
                    table_GSd.new_zeros(rows_BHK.numel()),
                    (batch * heads, groups * slots),
                    check_invariants=False,
                )
        return self._known[key]


class KeyStore:
    """Keys and values by slot; the tensors grow by doubling, and are freed once no slot is taken."""

    def __init__(self) -> None:
        self._size = 0
        self._free: list[int] = []
        self._keys: list[Tensor] = []  # key_GSd of each layer
        self._values: list[Tensor] = []  # value_GSe

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(one.nbytes for one in (*self._keys, *self._values))

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
            for kept in (self._free, self._keys, self._values):
                kept.clear()

    def write(self, layer: int, slots_T: Tensor, key_GTd: Tensor, value_GTe: Tensor) -> None:
        """Fill slots of one layer."""
        for tables, new_GTf in ((self._keys, key_GTd), (self._values, value_GTe)):
            if layer == len(tables):
                tables.append(new_GTf.new_empty(len(new_GTf), 0, new_GTf.shape[2]))
            table_GSf = tables[layer]
            slots = table_GSf.shape[1]
            if slots < self._size:
                grown = table_GSf.new_empty(len(table_GSf), max(self._size, 2 * slots), table_GSf.shape[2])
                grown[:, :slots] = table_GSf
                tables[layer] = table_GSf = grown
            table_GSf.index_copy_(1, slots_T, new_GTf)

    def read(self, layer: int, slots_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies (key_BGKd, value_BGKe) of one layer."""
        key_GBKd, value_GBKe = (
            table_GSf.index_select(1, slots_BK.flatten()).view(len(table_GSf), *slots_BK.shape, -1)
            for table_GSf in (self._keys[layer], self._values[layer])
        )
        return key_GBKd.transpose(0, 1), value_GBKe.transpose(0, 1)

    def scores(self, layer: int, rows: SlotRows, query_BHd: Tensor, scale: float) -> Tensor:
        """Return scores_BHK, the scaled products of each context's query and keys, which are not copied."""
        key_GSd = self._keys[layer]
        places, keys = rows.of(query_BHd.shape[1], key_GSd), key_GSd.flatten(0, 1)
        products = torch.sparse.sampled_addmm(places, query_BHd.flatten(0, 1), keys.t(), alpha=scale)
        scores: Tensor = products.values()
        return scores.view(*query_BHd.shape[:2], -1)

    def sums(self, layer: int, rows: SlotRows, weights_BHK: Tensor) -> Tensor:
        """Return output_BHe, the sums of each context's values by their weights."""
        value_GSe = self._values[layer]
        places = rows.of(weights_BHK.shape[1], value_GSe)
        sums: Tensor = embedding_bag(
            places.col_indices(),
            value_GSe.flatten(0, 1),
            places.crow_indices(),
            mode="sum",
            per_sample_weights=weights_BHK.flatten(),
            include_last_offset=True,
        )
        return sums.view(*weights_BHK.shape[:2], -1)
