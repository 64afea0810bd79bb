"""GrowingFile: JSON lines that are kept one by one, whenever the process may be killed."""

from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from selfplay.core import InputError
from selfplay.core.files import append_at

Line = TypeVar("Line", bound=msgspec.Struct)


class GrowingFile(Generic[Line]):
    """A file of JSON lines that grows. A line that a kill cut is as if it had not been written.

    Args:
        path: the file, which is created with the first line.
        kind: what a line holds.
    """

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self.path = path
        self.kind = kind
        self._end = 0

    def read(self) -> list[Line]:
        """Return the lines.

        Raises:
            InputError: a line is damaged.
        """
        content = self.path.read_bytes() if self.path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        return [self._decoded(line, n) for n, line in enumerate(content[: self._end].splitlines(), 1)]

    def append(self, line: Line) -> None:
        """Add a line; a kill after this returns does not lose it. Call :meth:`read` first.

        Raises:
            ValueError: the line holds what JSON cannot represent; a TypeError likewise.
            OSError: the file cannot be written.
        """
        content = msgspec.json.encode(line) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            append_at(file, self._end, content)
        self._end += len(content)

    def _decoded(self, line: bytes, number: int) -> Any:
        try:
            return msgspec.json.decode(line, type=self.kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path}, line {number}", f"the line is damaged: {error}", "Delete the line"
            ) from None
