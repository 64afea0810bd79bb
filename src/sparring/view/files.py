"""The files of a run: folders that grow, names with a step, and JSON that may be damaged."""

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sparring.collection.serialization import UNREADABLE

Shape = TypeVar("Shape")

SURE_AFTER_NS = 2_000_000_000
"""A folder that changed more recently than this is listed again: a coarse clock may hide another change."""


@dataclass
class Folder:
    """A folder's files and their modification times, listed again only after the folder has changed."""

    path: Path
    entries: dict[str, int] = field(default_factory=dict)
    _stamp: int = -1

    def look(self) -> bool:
        """List the folder if necessary and return whether it was listed. A missing folder is empty."""
        try:
            stamp = self.path.stat().st_mtime_ns
            if stamp == self._stamp and time.time_ns() - stamp > SURE_AFTER_NS:
                return False
            with os.scandir(self.path) as found:
                self.entries = {entry.name: entry.stat().st_mtime_ns for entry in found}
        except FileNotFoundError:
            self.entries, stamp = {}, -1
        self._stamp = stamp
        return True

    def newest(self, suffix: str) -> Path | None:
        """Return the entry with the highest step among those that end in ``suffix``."""
        names = [name for name in self.entries if name.startswith("step-") and name.endswith(suffix)]
        return max((self.path / name for name in names), key=number_of, default=None)


def number_of(path: Path) -> int:
    """Return the number in a file name such as ``step-000020-random.json``; 0 without one."""
    match = re.match(r"(?:[a-z]+-)+(\d+)", path.name)
    return int(match.group(1)) if match else 0


def decoded(data: bytes, shape: type[Shape]) -> Shape | None:
    """Return what JSON says in the given shape; ``None`` if it is damaged, of another shape or too deep."""
    try:
        return msgspec.json.decode(data, type=shape)
    except UNREADABLE:
        return None


def converted(value: Any, shape: type[Shape]) -> Shape | None:
    """Return a value in the given shape; ``None`` if it has another one, or names that no file can hold."""
    try:
        return msgspec.convert(value, shape, str_keys=True)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None


def read_json(path: Path, shape: type[Shape]) -> Shape | None:
    """Return what a file says in the given shape; ``None`` if it is missing, damaged or of another shape.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return decoded(path.read_bytes(), shape)
    except FileNotFoundError:
        return None
