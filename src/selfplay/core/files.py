"""Writing files and directories that appear complete or not at all, and survive a power failure.

New content is written under another name, synced, and then renamed. The content that it replaces stays until
the new content is in place.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""``.NAME.partial`` is still being written."""
REPLACED = ".replaced"
"""``.NAME.replaced`` is the old NAME while the new one takes its place."""
LOCK = ".lock"
"""The file in a directory that is locked by the process that may write there."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file, replacing an existing one.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    with replaced_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Let the body write a file, which replaces an existing one when the body has ended without an error.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    scratch = path.with_name(f".{path.name}{PARTIAL}")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except Exception:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def append_at(file: FileIO, end: int, content: bytes) -> None:
    """Write all of ``content`` after the first ``end`` bytes of an unbuffered file, or nothing.

    Bytes after ``end`` are the remains of an earlier write that failed, and are cut off.

    Raises:
        OSError: the content cannot be written. The file is cut to ``end`` again, unless that fails too.
    """
    try:
        if file.seek(0, os.SEEK_END) > end:
            file.truncate(end)
            file.seek(end)
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise


def scratch_for(directory: Path) -> Path:
    """Create a new directory beside ``directory``, to be filled and then passed to :func:`put_in_place`."""
    scratch = directory.with_name(f".{directory.name}{PARTIAL}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def put_in_place(scratch: Path, directory: Path) -> None:
    """Sync everything in ``scratch``, rename it to ``directory``, and sync the name.

    An existing directory is renamed, replaced and then deleted. After a kill between the two renames,
    :func:`finish_replacements` restores it.
    """
    for path in [*scratch.rglob("*"), scratch]:
        sync(path)
    finish_replacements(directory.parent)
    replaced = directory.with_name(f".{directory.name}{REPLACED}")
    if directory.exists():
        directory.rename(replaced)
    scratch.rename(directory)
    sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacements(parent: Path) -> None:
    """Clean up after a kill: restore directories that were not replaced yet; delete those that were."""
    for replaced in parent.glob(f".*{REPLACED}"):
        directory = replaced.with_name(replaced.name[1:].removesuffix(REPLACED))
        if directory.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(directory)


def remove_partial(directory: Path) -> None:
    """Delete what a kill left of unfinished writes, in a directory and everywhere below it.

    Raises:
        OSError: a file cannot be deleted.
    """
    for path in list(directory.rglob(f".*{PARTIAL}")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def lock_directory(directory: Path) -> int:
    """Lock a directory for writing until the returned descriptor is closed, or this process ends.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the lock cannot be written.
    """
    lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def is_locked(directory: Path) -> bool:
    """Whether a process holds the lock of a directory.

    Raises:
        OSError: the lock cannot be read.
    """
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def sync(path: Path) -> None:
    """Force a file's content or a directory's names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
