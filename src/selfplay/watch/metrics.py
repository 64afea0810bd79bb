"""MetricsTail: reads a growing metrics file in pieces and keeps as much as a screen can show."""

from pathlib import Path
from typing import Any

import msgspec

from selfplay.watch.run_view import POOL, Series

CHUNK_BYTES = 1 << 20
"""The number of bytes read at a time."""
MAX_LINE_BYTES = 1 << 24
"""A longer line counts as damaged."""
MAX_POINTS = 2048
"""A longer series loses every second point of its older half."""
CHECKED_BYTES = 256
"""The number of bytes of the last line that are read again, to detect a file that was cut and rewritten."""


class MetricsTail:
    """Follows ``metrics.jsonl``. Damaged lines are counted and skipped.

    A resumed run cuts the file and continues it. The reader notices that the last line it read is gone, and
    then reads everything again.

    Args:
        path: the file, which need not exist yet.
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
        """The share of the file that has been read; a half-written last line counts as read."""
        return self._offset / self._size if self._size else 1.0

    def series(self) -> dict[str, Series]:
        """Return a copy of every series."""
        return {name: Series(one.steps.copy(), one.values.copy()) for name, one in self._series.items()}

    def read(self) -> None:
        """Read the next piece of the file, of at most ``CHUNK_BYTES`` plus one line.

        Raises:
            OSError: the file exists but cannot be read.
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
        """Record one line."""
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
            # The newer half is kept whole, because screens show the last steps one by one.
            del series.steps[1 : MAX_POINTS // 2 : 2]
            del series.values[1 : MAX_POINTS // 2 : 2]
