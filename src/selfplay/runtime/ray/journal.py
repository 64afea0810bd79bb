"""Journal: a snapshot and what was done since, so that a killed service is itself again."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError


class Journal:
    """Snapshots and entries in a directory: ``snapshot-000003.json`` and ``entries-000003.jsonl``.

    An entry is in the file before :meth:`append` returns, so it outlives the process (not the machine's
    loss of power). A service takes up its snapshot, does again what the entries say, and is where it was.
    A last line that a kill has cut short is nothing that anybody was told of, and is left out.

    Args:
        directory: made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._number = 0
        self.length = 0

    def load(self) -> tuple[Any | None, list[Any]]:
        """Return the last snapshot (``None`` before the first) and the entries since; call it first.

        Raises:
            InputError: a file is damaged.
        """
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
        """Add an entry; JSON-able."""
        with self._entries_file().open("ab") as file:
            file.write(_encoded(entry) + b"\n")
        self.length += 1

    def snapshot(self, state: Any) -> None:
        """Replace snapshot and entries by ``state``, all or nothing."""
        number = self._number + 1
        path = self._snapshot_file(number)
        scratch = path.with_suffix(".partial")
        scratch.write_bytes(_encoded(state))
        self._entries_file(number).unlink(missing_ok=True)
        scratch.replace(path)
        self._number, self.length = number, 0
        self._remove_older()

    def _read_entries(self) -> list[Any]:
        path = self._entries_file()
        if not path.exists():
            return []
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        return [self._decode(line, self._entries_file) for line in whole.splitlines()]

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
    """As JSON. A game library may leave any object in its info: such a one is kept as its text."""
    return msgspec.json.encode(content, enc_hook=repr)
