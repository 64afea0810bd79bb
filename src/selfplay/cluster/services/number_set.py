"""NumberSet: a compact set of numbers that nearly fill a range from 0."""

from typing import Any


class NumberSet:
    """All numbers below ``floor`` and a few above it."""

    def __init__(self, floor: int = 0, above: set[int] | None = None) -> None:
        self.floor = floor
        self.above = above or set()

    def add(self, number: int) -> None:
        """Add a number of 0 or more."""
        if number >= self.floor:
            self.above.add(number)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and (number < self.floor or number in self.above)

    def __len__(self) -> int:
        return self.floor + len(self.above)

    def state_dict(self) -> dict[str, Any]:
        """Return the set as JSON-able data."""
        return {"floor": self.floor, "above": sorted(self.above)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "NumberSet":
        """Return the set that :meth:`state_dict` describes."""
        return cls(state["floor"], set(state["above"]))
