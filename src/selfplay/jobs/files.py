"""FileStore: uploaded data and result files, each a directory with its content and its description."""

import asyncio
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from selfplay.core import InputError
from selfplay.core.adapters import MANIFEST_FILE
from selfplay.core.files import put_in_place, remove_directory, remove_partial, scratch_for
from selfplay.core.manifest import seal
from selfplay.core.text import one_line
from selfplay.inference.server_schema import ApiError

MAX_FILE_BYTES = 256 * 2**20
"""Maximum size of an uploaded file."""
MAX_STORED_BYTES = 8 * 2**30
"""Maximum size of all files of a server together."""
CONTENT, DESCRIPTION = "content", "file.json"
FILE_ID = r"file-[0-9a-f]+"
FINE_TUNE, RESULTS = "fine-tune", "fine-tune-results"


class HasId(Protocol):
    """A record of a file or a job."""

    @property
    def id(self) -> str:
        """Its id, after which its directory is named."""


Record = TypeVar("Record")
Stored = TypeVar("Stored", bound=HasId)


class StoredFile(msgspec.Struct, frozen=True):
    """A file's description; ``created`` is in nanoseconds, so that files have an order."""

    id: str
    created: int
    bytes: int
    filename: str
    purpose: str

    def to_object(self) -> dict[str, Any]:
        """Return OpenAI's ``file`` object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created // 10**9,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
            "expires_at": None,
        }


class FileStore:
    """The files below one directory. It belongs to one event loop.

    Args:
        directory: where the files are; it is created.
        max_stored_bytes: maximum size of all files together.
        say: called with a line about a file whose description is damaged, and which is left out.
    """

    def __init__(
        self,
        directory: Path,
        max_stored_bytes: int = MAX_STORED_BYTES,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial(directory, FILE_ID)
        self.directory = directory
        self.max_stored_bytes = max_stored_bytes
        found = whole_records(directory, FILE_ID, DESCRIPTION, StoredFile, say)
        self._files = {one.id: one for one in sorted(found, key=lambda one: one.created)}
        self._expected = 0

    def all(self) -> list[StoredFile]:
        """Return all files, oldest first."""
        return list(self._files.values())

    def get(self, file_id: str) -> StoredFile:
        """Return a file's description.

        Raises:
            ApiError: there is no such file.
        """
        if file_id not in self._files:
            raise ApiError(404, f"No such File object: {file_id:.100}", param="id")
        return self._files[file_id]

    def content(self, file_id: str) -> Path:
        """Return the path of a file's content.

        Raises:
            ApiError: there is no such file.
        """
        return self.directory / self.get(file_id).id / CONTENT

    async def add(self, filename: str, size: int, source: BinaryIO) -> StoredFile:
        """Store an upload of ``size`` bytes; it is copied in a thread.

        Raises:
            ApiError: it is empty or too large, or too much is stored.
        """
        if size == 0:
            raise ApiError(400, "file: it is empty", param="file")
        if size > MAX_FILE_BYTES:
            raise ApiError(413, f"file: it has more than {MAX_FILE_BYTES:,} bytes", param="file")
        stored = sum(one.bytes for one in self._files.values()) + self._expected
        if stored + size > self.max_stored_bytes:
            problem = f"file: this server stores at most {self.max_stored_bytes:,} bytes. Delete other files"
            raise ApiError(413, problem, param="file")
        file = StoredFile(new_id("file-"), time.time_ns(), size, filename, FINE_TUNE)
        self._expected += size
        try:
            await asyncio.to_thread(self._write, file, source)
        finally:
            self._expected -= size
        self._files[file.id] = file
        return file

    def put_result(self, file_id: str, source: Path) -> None:
        """Store a job's result file under an id that the job has reserved; a repeated call does nothing."""
        if file_id in self._files:
            return
        name = f"{file_id}.csv"
        file = StoredFile(file_id, time.time_ns(), source.stat().st_size, name, RESULTS)
        with source.open("rb") as content:
            self._write(file, content)
        self._files[file_id] = file

    def delete(self, file_id: str) -> None:
        """Delete a file.

        Raises:
            ApiError: there is no such file.
        """
        path = self.directory / self.get(file_id).id
        removed = path.with_name(f".{path.name}.partial")  # removed at the next start if this is cut off
        path.rename(removed)
        remove_directory(removed, (CONTENT, DESCRIPTION, MANIFEST_FILE))
        del self._files[file_id]

    def _write(self, file: StoredFile, source: BinaryIO) -> None:
        scratch = scratch_for(self.directory / file.id)
        try:
            with (scratch / CONTENT).open("wb") as content:
                shutil.copyfileobj(source, content)
            (scratch / DESCRIPTION).write_bytes(msgspec.json.encode(file))
            seal(scratch)
            put_in_place(scratch, self.directory / file.id)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def new_id(prefix: str) -> str:
    """Return an id that cannot be guessed."""
    return prefix + secrets.token_hex(12)


def whole_records(
    directory: Path, ids: str, name: str, form: type[Stored], say: Callable[[str], None]
) -> list[Stored]:
    """Return the records that can be read, each from the file ``name`` in a directory that its id names.

    ``ids`` is a regular expression; other directories are somebody else's. ``say`` is called with a line
    about each that is damaged.
    """
    found = []
    for path in sorted(directory.iterdir()):
        if not re.fullmatch(ids, path.name):
            continue
        try:
            record = read_record(path / name, form)
        except InputError as error:
            say(f"note: {error.problem}; it is left out")
            continue
        if record.id == path.name:
            found.append(record)
        else:
            say(f"note: {path / name} is of {one_line(record.id)!r:.80}; it is left out")
    return found


def read_record(path: Path, form: type[Record]) -> Record:
    """Return the record in a JSON file.

    Raises:
        InputError: it is missing or damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            "--jobs", f"{path} is missing or damaged", f"Move {os.fspath(path.parent)} away."
        ) from error
