"""HistoryMemory: the histories of games that were met lately, and what they were worth.

A history is all that the seats were asked and answered so far. Histories are the rows of a tree. Below a
game's root is a row for each way in which it may begin, below that one for each answer that was given, then
one for each way in which the game went on after the answer, and so on: a row of odd depth is a decision or an
end, and one of even depth is what comes after an answer.

Letters: R rows, S seats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sparring.learn.legal_answers import FloatArray, IntArray

KEY_BYTES = 16
NO_ROW = -1
STATE = ("histories", "parents", "depths", "values", "batches", "counts", "met")


@dataclass
class HistoryMemory:
    """At most ``most`` rows between batches, those that were met last.

    A row has a value for each seat and the number of batches that these are of, a count of games that fades,
    and the number of the batch that met it last. Rows that are added get these by :meth:`widen`.
    """

    most: int
    keys: list[bytes] = field(default_factory=list)
    """What was asked or answered, or how the game ended."""
    parents_R: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    depths_R: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values_RS: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    batches_R: FloatArray = field(default_factory=lambda: np.zeros(0))
    counts_R: FloatArray = field(default_factory=lambda: np.zeros(0))
    met_R: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _rows: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _added: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, most: int, state: Mapping[str, Tensor]) -> "HistoryMemory":
        """Return the memory whose :meth:`state` this is."""
        memory = cls(most)
        if state:
            keys, *memory._arrays = (state[name].numpy().copy() for name in STATE)
            memory.keys = [key.tobytes() for key in keys]
            memory._index()
        return memory

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, parent: int, key: bytes) -> int:
        """Return a row, or ``NO_ROW``."""
        return self._rows.get((parent, key), NO_ROW)

    def row(self, parent: int, key: bytes, depth: int) -> int:
        """Return a row, which is added if it is missing; the parent of a root is ``NO_ROW``."""
        row = self._rows.setdefault((parent, key), len(self.keys))
        if row == len(self.keys):
            self.keys.append(key)
            self._added.append((parent, depth))
        return row

    def widen(self, seats: int) -> None:
        """Give the rows that were added their numbers, 0 at first, and all rows so many seats or more."""
        added = np.array(self._added, dtype=np.int64).reshape(-1, 2)
        self._added = []
        self.parents_R = np.concatenate([self.parents_R, added[:, 0]])
        self.depths_R = np.concatenate([self.depths_R, added[:, 1]])
        rows, seats = len(added), max(seats - self.values_RS.shape[1], 0)
        self.values_RS = np.pad(self.values_RS, [(0, rows), (0, seats)])
        self.batches_R, self.counts_R = np.pad(self.batches_R, (0, rows)), np.pad(self.counts_R, (0, rows))
        self.met_R = np.pad(self.met_R, (0, rows))

    def drop(self) -> None:
        """Keep the rows that were met last; of those that one batch met, the ones that came first.

        A parent comes before its children and is met whenever they are, so it is never dropped before them.
        """
        if len(self) <= self.most:
            return
        kept = np.sort(np.argsort(-self.met_R, kind="stable")[: self.most])
        number_R = np.full(len(self) + 1, NO_ROW, dtype=np.int64)  # the last is that of no row
        number_R[kept] = np.arange(len(kept))
        self._arrays = [array[kept] for array in self._arrays]
        self.parents_R = number_R[self.parents_R]
        self.keys = [self.keys[row] for row in kept.tolist()]
        self._index()

    def _index(self) -> None:
        edges = zip(self.parents_R.tolist(), self.keys, strict=True)
        self._rows = {edge: row for row, edge in enumerate(edges)}

    def state(self) -> dict[str, Tensor]:
        """Return the rows as tensors by name; nothing if there are none."""
        if not self.keys:
            return {}
        keys = np.frombuffer(b"".join(self.keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
        return {
            name: torch.from_numpy(array.copy())
            for name, array in zip(STATE, [keys, *self._arrays], strict=True)
        }

    @property
    def _arrays(self) -> list[np.ndarray]:
        return [self.parents_R, self.depths_R, self.values_RS, self.batches_R, self.counts_R, self.met_R]

    @_arrays.setter
    def _arrays(self, arrays: list[np.ndarray]) -> None:
        (self.parents_R, self.depths_R, self.values_RS, self.batches_R, self.counts_R, self.met_R) = arrays
