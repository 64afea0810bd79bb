"""A metric by step, of bounded length."""

from dataclasses import dataclass, field

MAX_POINTS = 2048
"""A series has at most this many points."""
NEWEST = MAX_POINTS // 2
"""This many of the newest points are all kept, because screens show the last steps one by one."""


@dataclass(frozen=True)
class Series:
    """A metric by step; a long one lacks points, but ``total`` is the sum of all its values."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    total: float = field(default=0.0, compare=False)


class GrowingSeries:
    """Takes point after point; of the older ones it keeps the first and then every n-th."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._values: list[float] = []
        self._numbers: list[int] = []
        self._count = 0
        self._stride = 1
        self._total = 0.0

    def append(self, step: float, value: float) -> None:
        """Add the next point."""
        self._steps.append(step)
        self._values.append(value)
        self._numbers.append(self._count)
        self._count += 1
        self._total += value
        if len(self._steps) > MAX_POINTS:
            self._thin()

    def series(self) -> Series:
        """Return a copy of the points kept."""
        return Series(self._steps.copy(), self._values.copy(), self._total)

    def _thin(self) -> None:
        """Make room for a quarter of the points, which therefore happens rarely."""
        older = self._numbers[:-NEWEST]
        while sum(number % self._stride == 0 for number in older) > NEWEST // 2:
            self._stride *= 2
        kept = [place for place, number in enumerate(older) if number % self._stride == 0]
        self._steps[:-NEWEST] = [self._steps[place] for place in kept]
        self._values[:-NEWEST] = [self._values[place] for place in kept]
        self._numbers[:-NEWEST] = [self._numbers[place] for place in kept]
