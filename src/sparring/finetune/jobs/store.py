"""What a server keeps of files and jobs: a directory for each, with a sealed record in it.

files/file-ID/file.json, content
jobs/ftjob-ID/job.json       the job, written by the server only
              training/      written by the process that trains; see ``learn.fine_tuning.job``
              outcome.json   the last file of that process
              worker.log     what that process printed
"""

import asyncio
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError, SparringError
from sparring.core.files import (
    LOCK,
    lock_directory,
    put_in_place,
    remove_directory,
    remove_partial,
    scratch_for,
    sha256_of,
    write_file,
)
from sparring.core.manifest import sealed, unsealed
from sparring.core.text import one_line
from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.records import FINE_TUNE, JOB_FILE, RESULTS, TRAINING, StoredFile, StoredJob
from sparring.learn.fine_tuning.settings import Row, read_rows

MAX_FILE_BYTES = 256 * 2**20
"""Maximum size of an uploaded file."""
MAX_STORED_BYTES = 8 * 2**30
"""Maximum size of all files of a server together."""
FILES, JOBS = "files", "jobs"
"""What a server keeps in its directory, beside the lock."""
CONTENT, DESCRIPTION = "content", "file.json"
_TRAINED = r"step-\d+|state|reference|[a-z]+\.(csv|json|jsonl)"
"""What the process that trains writes."""


Record = TypeVar("Record")
Stored = TypeVar("Stored", StoredFile, StoredJob)


class Records(Generic[Stored]):
    """The records below one directory, each in a directory that is named by its id; others are somebody
    else's. A damaged record is left out, and ``say`` is told."""

    def __init__(
        self, directory: Path, prefix: str, name: str, form: type[Stored], say: Callable[[str], None]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ids = prefix + "[0-9a-f]+"
        remove_partial(directory, ids)
        self.directory = directory
        self.name = name
        found = []
        for path in directory.iterdir():
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
        self._records: dict[str, Stored] = {one.id: one for one in sorted(found, key=lambda one: one.created)}

    def all(self) -> list[Stored]:
        """Return all records, oldest first."""
        return list(self._records.values())

    def place(self, record: Stored) -> Path:
        """Return a record's directory."""
        return self.directory / record.id

    def _put(self, record: Stored, scratch: Path) -> None:
        """Let a new record appear on the disk, with the files of its scratch directory, or not at all."""
        write_record(scratch / self.name, record)
        put_in_place(scratch, self.place(record))


class FileStore(Records[StoredFile]):
    """The data and result files of a server."""

    def __init__(self, directory: Path, max_stored_bytes: int, say: Callable[[str], None]) -> None:
        super().__init__(directory, "file-", DESCRIPTION, StoredFile, say)
        self.max_stored_bytes = max_stored_bytes
        self._expected = 0

    def get(self, file_id: str) -> StoredFile:
        """Return a file's description. Raises ApiError: there is none."""
        if file_id not in self._records:
            raise ApiError(404, f"No such File object: {file_id:.100}", param="id")
        return self._records[file_id]

    def content(self, file_id: str) -> Path:
        """Return the path of a file's content. Raises ApiError: there is none."""
        return self.place(self.get(file_id)) / CONTENT

    async def add(self, filename: str, size: int, source: BinaryIO) -> StoredFile:
        """Store an upload of ``size`` bytes, copied in a thread. Raises ApiError: it is empty or too large,
        or too much is stored."""
        if size == 0:
            raise ApiError(400, "file: it is empty", param="file")
        if size > MAX_FILE_BYTES:
            raise ApiError(413, f"file: it has more than {MAX_FILE_BYTES:,} bytes", param="file")
        stored = sum(one.bytes for one in self._records.values()) + self._expected
        if stored + size > self.max_stored_bytes:
            problem = f"file: this server stores at most {self.max_stored_bytes:,} bytes. Delete other files"
            raise ApiError(413, problem, param="file")
        self._expected += size
        try:
            file = await asyncio.to_thread(self._write, new_id("file-"), size, filename, FINE_TUNE, source)
        finally:
            self._expected -= size
        self._records[file.id] = file
        return file

    def put_result(self, file_id: str, source: Path) -> None:
        """Store a job's result file under an id that the job has reserved; a repeated call does nothing."""
        if file_id not in self._records:
            with source.open("rb") as content:
                size, name = source.stat().st_size, f"{file_id}.csv"
                self._records[file_id] = self._write(file_id, size, name, RESULTS, content)

    def delete(self, file_id: str) -> None:
        """Delete a file. Raises ApiError: there is none."""
        path = self.place(self.get(file_id))
        removed = path.with_name(f".{path.name}.partial")  # removed at the next start if this is cut off
        path.rename(removed)
        del self._records[file_id]
        remove_directory(removed, (CONTENT, DESCRIPTION))

    def _write(self, file_id: str, size: int, filename: str, purpose: str, source: BinaryIO) -> StoredFile:
        scratch = scratch_for(self.directory / file_id)
        try:
            with (scratch / CONTENT).open("wb") as content:
                shutil.copyfileobj(source, content)
            digest = sha256_of(scratch / CONTENT)
            file = StoredFile(file_id, time.time_ns(), size, filename, purpose, digest)
            self._put(file, scratch)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return file


class JobStore(Records[StoredJob]):
    """The jobs of a server."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        super().__init__(directory, "ftjob-", JOB_FILE, StoredJob, say)
        for job in directory.glob("ftjob-*"):
            remove_partial(job, JOB_FILE)
            remove_partial(job / TRAINING, _TRAINED)

    def get(self, job_id: str) -> StoredJob:
        """Return a job. Raises ApiError: there is none."""
        if job_id not in self._records:
            problem = f"Could not find fine tune: {job_id:.100}"
            raise ApiError(404, problem, param="fine_tune_id", code="fine_tune_not_found")
        return self._records[job_id]

    def add(self, job: StoredJob) -> None:
        """Store a new job, whole or not at all."""
        self._put(job, scratch_for(self.place(job)))
        self._records[job.id] = job

    @contextmanager
    def changing(self, job: StoredJob) -> Iterator[StoredJob]:
        """Let the body change a copy of a job; write it, and change the job only then."""
        changed = copy(job)
        yield changed
        write_record(self.place(job) / self.name, changed)
        for name in job.__struct_fields__:
            setattr(job, name, getattr(changed, name))

    def rows(self, job: StoredJob) -> list[Row]:
        """Return the metrics of a job's steps so far. Raises SparringError: they are damaged."""
        try:
            return read_rows(self.place(job) / TRAINING)
        except InputError as error:
            raise SparringError(f"the metrics of job {job.id} are damaged") from error


def new_id(prefix: str) -> str:
    """Return an id that cannot be guessed."""
    return prefix + secrets.token_hex(12)


def write_record(path: Path, record: object) -> None:
    """Write a sealed record, replacing an existing one."""
    write_file(path, sealed(msgspec.to_builtins(record)))


def read_record(path: Path, form: type[Record]) -> Record:
    """Return the sealed record in a file. Raises InputError: it is missing or damaged."""
    try:
        return msgspec.convert(unsealed(path.read_bytes()), type=form)
    except (OSError, *UNREADABLE) as error:
        raise InputError("--jobs", f"{path} is missing or damaged", f"Move {path.parent} away.") from error


def locked(directory: Path, own: Sequence[str] = (FILES, JOBS), option: str = "--jobs") -> int:
    """Lock a server's directory, which is created, and return the lock. Raises InputError: it cannot be used,
    is not a server's, because it holds other files than its ``own``, or is in use."""
    try:
        names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
        whole = {*own, LOCK}
        if names - whole and not whole <= names:
            problem = f"{directory} is not a server's directory of {own[-1]}: it holds {min(names - whole)!r}"
            raise InputError(option, problem, "Name a new directory")
        directory.mkdir(parents=True, exist_ok=True)
        return lock_directory(directory)
    except BlockingIOError as error:
        problem = f"{directory} is in use by another server"
        raise InputError(option, problem, "Choose another directory, or end that server.") from error
    except OSError as error:
        raise unusable(directory, error, option) from error


def unusable(directory: Path, error: OSError, option: str = "--jobs") -> InputError:
    """Return the error of a directory that cannot be used."""
    return InputError(option, f"{directory} cannot be used ({error.strerror})", "Choose another directory.")
