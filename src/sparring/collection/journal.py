"""Journal: a snapshot and the changes since, so that a killed service can be restored."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from sparring.collection.serialization import UNREADABLE, plain
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch, append_at, replaced_file, write_file

FORMAT = 7
"""Number of the format of all services' snapshots and entries, in the file ``format`` beside them."""
PIECE = 16
"""Rows that are encoded together: other threads run between two pieces."""
LARGE = 100
"""A snapshot with more rows is written by a thread."""
_OWN_FILE = re.compile(r"(?:snapshot|entries)-(\d+)\.jsonl?")


Content = TypeVar("Content")
Entry = TypeVar("Entry")


class JournalEntry(msgspec.Struct, frozen=True, tag=True):
    """An entry of a certain kind; in the file it has the name of its class."""


class Journal(Generic[Entry]):
    """Snapshots and entries in a directory: ``snapshot-000003.json`` and ``entries-000003.jsonl``.

    An entry is in the file before :meth:`append` returns, so it survives the process (but not a power
    failure; a snapshot does). A last line that a kill or a full disk has truncated was never acknowledged,
    and is ignored.

    While a thread writes a large snapshot, entries already go to the new file; until it is in place, the old
    snapshot is followed by the entries of both files.

    Args:
        directory: the journal's directory; created if missing.
        epoch: the run's epoch. Once it is over, reads and writes raise a SparringError.
        entries: the type of an entry, or the union of its types; any JSON-able data by default.
    """

    def __init__(self, directory: Path, epoch: Epoch | None = None, entries: Any = Any) -> None:
        self._epoch = epoch
        self._decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(entries, strict=False)
        self._check_epoch()
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._number = 0  # of the entries file that is written
        self._end = 0  # of that file, in bytes
        self._last = (0, 0)  # the file of the last entry, and its end before that entry
        self._written = 0  # bytes of all entries since the snapshot
        self._snapshot_size = 0
        self._writing: threading.Thread | None = None
        self._failure: Exception | None = None
        self.length = 0

    def load(self) -> tuple[Any | None, list[Entry]]:
        """Return the last snapshot (``None`` before the first) and the entries since; call it first.

        Raises InputError if a file is damaged, or was written by another version of sparring.
        """
        self._check_format()
        numbers = self._numbers(r"snapshot-(\d+)\.json")
        first = max(numbers, default=0)
        state = self._read_snapshot(first) if numbers else None
        entries: list[Entry] = []
        for number in range(first, max(self._numbers(r"entries-(\d+)\.jsonl"), default=first) + 1):
            entries += self._read_entries(number)
        self.length = len(entries)
        self._remove_before(first)
        return state, entries

    def append(self, entry: Entry) -> None:
        """Add an entry; if that raises an OSError, it is not in the file."""
        self._check_epoch()
        line = _encoded(entry) + b"\n"
        with self._entries_file(self._number).open("ab", buffering=0) as file:
            append_at(file, self._end, line)
        self._last, self._end = (self._number, self._end), self._end + len(line)
        self._written += len(line)
        self.length += 1

    @contextmanager
    def noted(self, entry: Entry) -> Iterator[None]:
        """Add an entry, then execute it in the body; if the body fails, the entry is removed."""
        self.append(entry)
        try:
            yield
        except BaseException:
            self._take_back()
            raise

    def replay(self, entries: list[Entry], do: Callable[[Entry], Any]) -> None:
        """Execute the entries of :meth:`load` again; if the last one fails, it is removed.

        A kill may have come between its failure and its removal.
        """
        for place, entry in enumerate(entries, 1):
            try:
                do(entry)
            except SparringError:
                if place == len(entries):
                    self._take_back()
                raise

    def is_long(self, entries: int) -> bool:
        """Whether there are this many entries, and as many bytes as in the snapshot before them.

        So what a service writes again in snapshots is never more than what it has written in entries.
        """
        return self.length >= entries and self._written >= self._snapshot_size

    def snapshot(self, state: Any, rows: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Replace snapshot and entries by ``state``, completely or not at all.

        ``rows`` are large parts of the state, by the name that they have in it. Many are encoded by a thread
        after the call has returned; a further snapshot waits for it, and raises its error. Nobody may change
        them.
        """
        self._check_epoch()
        self.settle()
        rows = rows or {}
        pieces = sum(-(-len(items) // PIECE) for items in rows.values())
        head = _encoded([pieces, list(rows), state])
        number = self._number + 1
        if sum(map(len, rows.values())) <= LARGE:
            self._write_snapshot(number, head, rows)
            self._begin(number)
            return
        self._begin(number)
        self._writing = threading.Thread(target=self._write_later, args=(number, head, rows), daemon=True)
        self._writing.start()

    def settle(self) -> None:
        """Wait until no snapshot is being written, and raise its error."""
        if self._writing is not None:
            self._writing.join()
        self._writing = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def is_writing(self) -> bool:
        """Whether a thread is writing a snapshot."""
        return self._writing is not None and self._writing.is_alive()

    def _begin(self, number: int) -> None:
        self._entries_file(number).unlink(missing_ok=True)
        self._number, self._end, self._last = number, 0, (number, 0)
        self.length = self._written = 0

    def _write_later(self, number: int, head: bytes, rows: Mapping[str, Sequence[Any]]) -> None:
        try:
            self._write_snapshot(number, head, rows)
        except Exception as error:  # noqa: BLE001 - the next snapshot raises it
            self._failure = error

    def _write_snapshot(self, number: int, head: bytes, rows: Mapping[str, Sequence[Any]]) -> None:
        path = self._snapshot_file(number)
        with replaced_file(path) as file:
            file.write(head + b"\n")
            for place, items in enumerate(rows.values()):
                for first in range(0, len(items), PIECE):
                    file.write(_encoded([place, items[first : first + PIECE]]) + b"\n")
            self._check_epoch()
        self._snapshot_size = path.stat().st_size
        self._remove_before(number)

    def _check_format(self) -> None:
        file = self.directory / "format"
        if not file.exists() and not any(_OWN_FILE.fullmatch(path.name) for path in self.directory.iterdir()):
            write_file(file, str(FORMAT).encode())
        elif not file.exists() or file.read_text() != str(FORMAT):
            raise InputError(
                "run directory",
                f"{self.directory} was written by another version of sparring",
                "Resume with the version that started the run, or start a new run.",
            )

    def _check_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.check()

    def _take_back(self) -> None:
        number, end = self._last
        with self._entries_file(number).open("r+b") as file:
            file.truncate(end)
        if number == self._number:
            self._end = end
        self.length -= 1

    def _read_snapshot(self, number: int) -> Any:
        path = self._snapshot_file(number)
        head, *lines = [_decoded(_ANYTHING, line, path) for line in path.read_bytes().splitlines() or [b"0"]]
        if not isinstance(head, list) or len(head) != 3 or head[0] != len(lines):
            raise _damaged(path, "it is not complete")
        self._snapshot_size = path.stat().st_size
        _, names, state = head
        for name in names:
            state[name] = []
        for place, items in lines:
            state[names[place]] += items
        return state

    def _read_entries(self, number: int) -> list[Entry]:
        path = self._entries_file(number)
        content = path.read_bytes() if path.exists() else b""
        self._number, self._end = number, content.rfind(b"\n") + 1
        if self._end:
            self._last = (number, content.rfind(b"\n", 0, self._end - 1) + 1)
        if self._end < len(content):
            with path.open("r+b") as file:
                file.truncate(self._end)
        self._written += self._end
        return [_decoded(self._decoder, line, path) for line in content[: self._end].splitlines()]

    def _numbers(self, pattern: str) -> list[int]:
        matches = (re.fullmatch(pattern, path.name) for path in self.directory.iterdir())
        return [int(match[1]) for match in matches if match]

    def _remove_before(self, number: int) -> None:
        for path in list(self.directory.iterdir()):
            match = _OWN_FILE.fullmatch(path.name)
            if match and int(match[1]) < number:
                path.unlink(missing_ok=True)

    def _snapshot_file(self, number: int) -> Path:
        return self.directory / f"snapshot-{number:06d}.json"

    def _entries_file(self, number: int) -> Path:
        return self.directory / f"entries-{number:06d}.jsonl"


def _encoded(content: Any) -> bytes:
    return msgspec.json.encode(content, enc_hook=plain)


_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)


def _decoded(decoder: msgspec.json.Decoder[Content], content: bytes, path: Path) -> Content:
    try:
        return decoder.decode(content)
    except UNREADABLE as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, problem: str) -> InputError:
    return InputError("run directory", f"{path} is damaged ({problem})", "Start a new run.")


Change = TypeVar("Change", contravariant=True)


class Restorable(Protocol[Change]):
    """What a journal restores."""

    def apply(self, entry: Change) -> Any:
        """Change the state as an entry says, and return the answer to who asked for the change."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot, as read from JSON."""


Kept = TypeVar("Kept", bound=Restorable[Any])


class Journaled(Generic[Kept]):
    """The state of a service with its journal: every change is written before it is made.

    If the state cannot be restored, every use of it raises the reason. (Were it raised here, in the
    constructor of an actor, Ray would pass on only its text.)
    """

    def __init__(self, new: Kept, directory: str | None, epoch: Epoch | None, entries: Any) -> None:
        self._state = new
        self._journal: Journal[Any] | None = None
        self._failure: SparringError | None = None
        try:
            if directory is not None:
                self._journal = Journal(Path(directory), epoch, entries)
                self._restore(self._journal)
        except SparringError as error:
            self._failure = error

    @property
    def state(self) -> Kept:
        """The state, or the SparringError for which it cannot be restored."""
        if self._failure is not None:
            raise self._failure
        return self._state

    @property
    def is_journaled(self) -> bool:
        """Whether there is a journal."""
        return self._journal is not None

    @property
    def journal(self) -> Journal[Any] | None:
        """The journal, unless a snapshot is being written to it."""
        return None if self._journal is None or self._journal.is_writing else self._journal

    def do(self, entry: Any) -> Any:
        """Write an entry to the journal, then apply it; return the answer. If it fails, it is removed."""
        if self._journal is None:
            return self.state.apply(entry)
        with self._journal.noted(entry):
            return self.state.apply(entry)

    def _restore(self, journal: Journal[Any]) -> None:
        snapshot, entries = journal.load()
        try:
            if snapshot is not None:
                self._state.load_state_dict(snapshot)
            journal.replay(entries, self._state.apply)
        except msgspec.DecodeError as error:  # of what is packed in an entry
            raise _damaged(journal.directory, str(error)) from error


class JournaledService(Generic[Kept]):
    """A service with such a state. Calls may wait until it changes: who changes it sets ``_changed``."""

    def __init__(self, kept: Journaled[Kept]) -> None:
        self._kept = kept
        self._changed = asyncio.Event()

    @property
    def state(self) -> Kept:
        """The state; raises the SparringError for which it cannot be restored."""
        return self._kept.state

    def check(self) -> None:
        """Raise the SparringError for which the state cannot be restored, if any."""
        _ = self.state

    async def _until(self, holds: Callable[[], bool], wait: float) -> None:
        """Wait until a condition holds, or ``wait`` seconds have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
