"""Journal: a snapshot and the calls since, so that a killed service can be restored."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError, SelfplayError
from selfplay.core.files import append_at, write_file
from selfplay.training.epoch import Epoch

FORMAT = 1
"""Number of the format of all services' snapshots and entries, in the file ``format`` beside them."""


class Journal:
    """Snapshots and entries in a directory: ``snapshot-000003.json`` and ``entries-000003.jsonl``.

    An entry is in the file before :meth:`append` returns, so it survives the process (but not a power
    failure; a snapshot does). A service loads its snapshot, replays the entries, and has its state back. A
    last line that a kill or a full disk has truncated was never acknowledged, and is ignored.

    Args:
        directory: the journal's directory; created if missing.
        epoch: the run's epoch. Once it is over, reads and writes raise a SelfplayError.
    """

    def __init__(self, directory: Path, epoch: Epoch | None = None) -> None:
        self._epoch = epoch
        self._check_epoch()
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._number = 0
        self._end = 0  # of the entries file, in bytes
        self._last_end = 0  # the same, before the last entry
        self.length = 0

    def load(self) -> tuple[Any | None, list[Any]]:
        """Return the last snapshot (``None`` before the first) and the entries since; call it first.

        Raises:
            InputError: a file is damaged, or was written by another version of selfplay.
        """
        self._check_format()
        numbers = [int(path.stem.split("-")[1]) for path in self.directory.glob("snapshot-*.json")]
        self._number = max(numbers, default=0)
        state = None
        if numbers:
            state = self._decode(self._snapshot_file(self._number).read_bytes(), self._snapshot_file)
        entries = self._read_entries()
        self.length = len(entries)
        self._remove_older()
        return state, entries

    def append(self, entry: Any) -> None:
        """Add an entry; JSON-able.

        Raises:
            OSError: the entry cannot be written, and is not in the file.
        """
        self._check_epoch()
        line = _encoded(entry) + b"\n"
        with self._entries_file().open("ab", buffering=0) as file:
            append_at(file, self._end, line)
        self._last_end, self._end = self._end, self._end + len(line)
        self.length += 1

    @contextmanager
    def noted(self, entry: Any) -> Iterator[None]:
        """Add an entry, then execute it in the body; if the body fails, the entry is removed.

        Raises:
            OSError: the entry cannot be written; the body did not run.
        """
        self.append(entry)
        try:
            yield
        except BaseException:
            self._take_back()
            raise

    def replay(self, entries: list[Any], do: Callable[[Any], None]) -> None:
        """Execute the entries of :meth:`load` again.

        A kill may have come between a last entry and its failure; then the entry is removed now.

        Raises:
            SelfplayError: an entry fails; if it is the last, it is removed.
        """
        for place, entry in enumerate(entries, 1):
            try:
                do(entry)
            except SelfplayError:
                if place == len(entries):
                    self._take_back()
                raise

    def snapshot(self, state: Any) -> None:
        """Replace snapshot and entries by ``state``, completely or not at all.

        Raises:
            OSError: the snapshot cannot be written; the old files are unchanged.
        """
        self._check_epoch()
        number = self._number + 1
        content = _encoded(state)
        self._entries_file(number).unlink(missing_ok=True)
        write_file(self._snapshot_file(number), content)
        self._number, self.length = number, 0
        self._end = self._last_end = 0
        self._remove_older()

    def _check_format(self) -> None:
        file = self.directory / "format"
        if not file.exists() and not any(self.directory.glob("*-*.json*")):
            write_file(file, str(FORMAT).encode())
        elif not file.exists() or file.read_text() != str(FORMAT):
            raise InputError(
                "run directory",
                f"{self.directory} was written by another version of selfplay",
                "Resume with the version that started the run, or start a new run.",
            )

    def _check_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.check()

    def _take_back(self) -> None:
        with self._entries_file().open("r+b") as file:
            file.truncate(self._last_end)
        self._end = self._last_end
        self.length -= 1

    def _read_entries(self) -> list[Any]:
        path = self._entries_file()
        content = path.read_bytes() if path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        self._last_end = content.rfind(b"\n", 0, max(self._end - 1, 0)) + 1
        if self._end < len(content):
            with path.open("r+b") as file:
                file.truncate(self._end)
        return [self._decode(line, self._entries_file) for line in content[: self._end].splitlines()]

    def _decode(self, content: bytes, file: Any) -> Any:
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            path = file(self._number)
            raise InputError("run directory", f"{path} is damaged ({error})", "Start a new run.") from error

    def _remove_older(self) -> None:
        for path in self.directory.glob("*-*.json*"):
            with contextlib.suppress(ValueError):
                if int(path.stem.split("-")[1].split(".")[0]) < self._number:
                    path.unlink(missing_ok=True)

    def _snapshot_file(self, number: int) -> Path:
        return self.directory / f"snapshot-{number:06d}.json"

    def _entries_file(self, number: int | None = None) -> Path:
        return self.directory / f"entries-{self._number if number is None else number:06d}.jsonl"


def _encoded(content: Any) -> bytes:
    """Encode as JSON. A game library may leave any object in its info; such an object is kept as its text."""
    return msgspec.json.encode(content, enc_hook=repr)
