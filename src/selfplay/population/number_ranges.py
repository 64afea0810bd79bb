"""NumberRanges: a set of whole numbers, kept as ranges."""

from bisect import bisect_right
from collections.abc import Sequence


class NumberRanges:
    """A set of whole numbers that takes memory for each gap instead of each number."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, number: int) -> bool:
        """Add a number; return whether it was missing."""
        if number in self:
            return False
        after = bisect_right(self._starts, number)
        joins_left = after > 0 and self._ends[after - 1] == number
        joins_right = after < len(self._starts) and self._starts[after] == number + 1
        if joins_left and joins_right:
            self._ends[after - 1] = self._ends.pop(after)
            self._starts.pop(after)
        elif joins_left:
            self._ends[after - 1] = number + 1
        elif joins_right:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._ends.insert(after, number + 1)
        return True

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def state(self) -> list[list[int]]:
        """Return the ranges in order, each as its first number and the one after its last."""
        return [[start, end] for start, end in zip(self._starts, self._ends, strict=True)]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[int]]) -> "NumberRanges":
        """Return the set of these ranges, which :meth:`state` returned."""
        ranges = cls()
        ranges._starts = [int(start) for start, _ in state]
        ranges._ends = [int(end) for _, end in state]
        return ranges
