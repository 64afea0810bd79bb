"""MetricsTail: reads a growing metrics file a piece at a time, and keeps what a screen can show."""

from pathlib import Path
from typing import Any

import msgspec

from selfplay.tracking.watch_view import POOL, Series

CHUNK_BYTES = 1 << 20
"""How much of the file is read at a time."""
MAX_LINE_BYTES = 1 << 24
"""A longer line is taken for damaged."""
MAX_POINTS = 2048
"""A series that is longer loses every second point of its past."""
CHECKED_BYTES = 256
"""How much of the last line read is looked at again, to notice a file that was cut and written anew."""


class MetricsTail:
    """Follows ``metrics.jsonl``. Lines that are damaged are counted and passed over.

    A resumed run cuts the file and goes on writing. That is noticed by the last line read, which then is not
    there any more; everything is read again.

    Args:
        path: the file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.latest: dict[str, float] = {}
        self.damaged = 0
        self._series: dict[str, Series] = {}
        self._offset = 0
        self._size = 0
        self._last = b""

    @property
    def share_read(self) -> float:
        """How much of the file has been read; the half-written last line counts as read."""
        return self._offset / self._size if self._size else 1.0

    def series(self) -> dict[str, Series]:
        """Return a copy of every series."""
        return {name: Series(one.steps.copy(), one.values.copy()) for name, one in self._series.items()}

    def read(self) -> None:
        """Read the next piece of at most ``CHUNK_BYTES`` and a line.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._forget()
            return
        with file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._forget()
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

    def _take(self, line: bytes) -> None:
        """Take in one line."""
        try:
            metrics = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            self.damaged += bool(line.strip())
            return
        step = metrics.get("step")
        if not isinstance(step, int | float):
            self.damaged += 1
            return
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self.latest[name] = value
                if not name.startswith(POOL):
                    self._append(self._series.setdefault(name, Series()), step, value)

    def _append(self, series: Series, step: float, value: float) -> None:
        series.steps.append(step)
        series.values.append(value)
        if len(series.steps) > MAX_POINTS:
            # The newer half stays as it is: screens show the last steps one by one.
            del series.steps[1 : MAX_POINTS // 2 : 2]
            del series.values[1 : MAX_POINTS // 2 : 2]
