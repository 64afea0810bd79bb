"""LineTail: reads a growing file of JSON lines in pieces."""

from abc import ABC, abstractmethod
from pathlib import Path

CHUNK_BYTES = 1 << 20
"""The number of bytes read at a time."""
MAX_LINE_BYTES = 1 << 24
"""A longer line counts as damaged."""
CHECKED_BYTES = 256
"""The number of bytes of the last line that are read again, to detect a file that was cut and rewritten."""


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
