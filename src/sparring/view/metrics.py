"""Metrics by step, read from a growing file in pieces: as much as a screen or a page can show."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparring.view.files import decoded

CHUNK_BYTES = 1 << 20
"""The number of bytes read at a time."""
MAX_LINE_BYTES = 1 << 24
"""A longer line counts as damaged."""
CHECKED_BYTES = 256
"""The number of bytes of the last line that are read again, to detect a file that was cut and rewritten."""

MAX_POINTS = 2048
"""A series has at most this many points."""
NEWEST = MAX_POINTS // 2
"""This many of the newest points are all kept, because screens show the last steps one by one."""
LARGEST = 1e300
"""A larger number is left out: its sums and differences are none."""
POOL = "model-pool/"
MAX_RATED = 16
"""The ratings of this many models are kept by step; of any others, only the latest."""


class LineTail(ABC):
    """Follows a file of lines.

    A resumed run cuts the file and continues it. The reader notices that the last line it read is gone, and
    then reads everything again.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._size = 0
        self._last = b""
        self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Forget everything that was read."""

    @abstractmethod
    def _take(self, line: bytes) -> None:
        """Record one line."""

    @property
    def share_read(self) -> float:
        """The share of the file that has been read; a half-written last line counts as read."""
        return self._offset / self._size if self._size else 1.0

    def read(self) -> None:
        """Read the next piece of the file, of at most ``CHUNK_BYTES`` plus one line.

        Raises:
            OSError: the file exists but cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._begin()
            return
        with file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._begin()
                file.seek(0)
            end = self._offset + CHUNK_BYTES
            while self._offset < end:
                line = file.readline(MAX_LINE_BYTES)
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    self._size = self._offset
                    return
                self._offset += len(line)
                self._last = line[-CHECKED_BYTES:]
                self._take(line)
            self._size = max(self._offset, file.seek(0, 2))

    def _begin(self) -> None:
        self._offset, self._size, self._last = 0, 0, b""
        self._forget()


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


class MetricsTail(LineTail):
    """Follows ``metrics.jsonl``. Damaged lines are counted and skipped.

    Args:
        path: the file, which need not exist yet.

    Attributes:
        latest: the latest value of every metric.
        lines: the number of lines read, without damaged ones.
        damaged: the number of damaged lines.
    """

    def _forget(self) -> None:
        self.latest: dict[str, float] = {}
        self.lines = 0
        self.damaged = 0
        self._series: dict[str, GrowingSeries] = {}
        self._rated: set[str] = set()

    def series(self) -> dict[str, Series]:
        """Return a copy of every series."""
        return {name: one.series() for name, one in self._series.items()}

    def _take(self, line: bytes) -> None:
        found = decoded(line, dict[str, Any]) or {}
        metrics = {name: value for name, value in found.items() if _is_number(value)}
        if (step := metrics.get("step")) is None:
            self.damaged += bool(line.strip())
            return
        self.lines += 1
        for name, value in metrics.items():
            self.latest[name] = value
            series = self._series.get(name)
            if series is None and self._is_kept(name):
                series = self._series[name] = GrowingSeries()
            if series is not None:
                series.append(step, value)

    def _is_kept(self, name: str) -> bool:
        """Return whether a metric's series is kept: a long run rates more models than memory may hold."""
        if not name.startswith(POOL):
            return True
        uid = name.removeprefix(POOL).rpartition("/")[0]
        if len(self._rated) < MAX_RATED:
            self._rated.add(uid)
        return uid in self._rated


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < LARGEST
