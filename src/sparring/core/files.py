"""Writing files and directories that appear complete or not at all, and survive a power failure.

New content is written under another name, synced, and then renamed. What is deleted has a name that is only
given here: a directory may also hold files of others.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO

from sparring.core import locks
from sparring.core.adapters import SAVED_FILES
from sparring.core.errors import InputError, SparringError

EPOCH_FILE = ".epoch"


@dataclass(frozen=True)
class Epoch:
    """A number that each start of a run increments, and that is checked before shared state is written.

    The lock of a run belongs to one process, and on some file systems it holds on one machine only. After a
    cluster loses its head node, its other nodes continue for a while, and the run may meanwhile be resumed
    elsewhere.
    """

    file: Path
    number: int

    @classmethod
    def begin(cls, run: Path) -> "Epoch":
        """Begin a new epoch of the run, which is locked; raise an InputError if the last number is
        damaged."""
        file = run / EPOCH_FILE
        number = _read_number(file) + 1 if file.exists() else 1
        write_file(file, str(number).encode())
        return cls(file.absolute(), number)

    def is_over(self) -> bool:
        """Return whether the run has been started again since; raise an InputError if the file is damaged."""
        return _read_number(self.file) != self.number

    def end(self) -> None:
        """End this epoch: the run has been started again from another directory."""
        if not self.is_over():
            write_file(self.file, str(self.number + 1).encode())

    def check(self) -> None:
        """Raise a SparringError if the run has been started again since."""
        if self.is_over():
            raise SparringError(f"{self.file.parent} was resumed by another process, so this one stops")


def _read_number(file: Path) -> int:
    try:
        return int(file.read_text())
    except ValueError as error:
        raise InputError(
            "run directory",
            f"{file} is damaged: it must contain the number of the run's starts",
            "Delete it if no other process works on the run, and resume.",
        ) from error


PARTIAL = ".partial"
"""``.NAME.partial`` is still being written."""
REPLACED = ".replaced"
"""``.NAME.replaced`` is the old NAME while the new one takes its place."""
LOOKS, LOOK_SECONDS = 20, 0.01
"""How often and for how long a process waits for another that only looks whether a directory is locked."""
SUFFIXES = {".json", ".jsonl", ".gz", ".toml", ".html", ".safetensors"}
"""How the names of files of this package end, and of no directory."""
NOT_LOOKED_INTO = {"checkpoints", "best", "wandb", "tensorboard"}
"""Folders of a run that ``check_kinds`` leaves out. Saved directories have a check of their own
(``core/manifest.py``); in the others, which are not read, other programs choose the names.
"""
LOCK = ".lock"
"""The file in a directory that is locked by the process that may write there."""


_copies: Path | None = None


def read_copies(root: Path) -> None:
    """Let this process read the files that a configuration names, by absolute path, below ``root``."""
    global _copies
    _copies = root


def located(path: str) -> Path:
    """Return where this process reads a file that a configuration names."""
    if _copies is None or not os.path.isabs(path):
        return Path(path)
    return _copies / Path(path).relative_to(Path(path).anchor)


def cache_directory() -> Path:
    """Return the user's cache of what is made once: ``$SPARRING_CACHE``, else ``sparring`` in XDG's cache."""
    if "SPARRING_CACHE" in os.environ:
        return Path(os.environ["SPARRING_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sparring"


def write_file(path: Path, content: bytes) -> None:
    """Write a file, replacing an existing one, which is unchanged if that raises an OSError."""
    with replaced_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let an OSError become a SparringError that says which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise SparringError(f"{path} cannot be written ({error.strerror})") from error


def unwritable(directory: Path, error: OSError) -> SparringError:
    """Return the error of a command that goes on in a directory if it is given again."""
    problem = f"{directory} cannot be written ({error}): free the disk or fix its permissions"
    return SparringError(f"{problem}, and give this command again")


def write_users_file(path: Path, content: bytes) -> None:
    """Write a file where the user asks for it: beside it may be anything, also a ``.NAME.partial``."""
    with replaced_users_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def replaced_users_file(path: Path) -> Iterator[BinaryIO]:
    """Do as :func:`replaced_file` does, where the user asks for a file: a link's target is replaced, not the
    link. Raises an OSError for what is no file, such as a device, which is left as it is."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    os.close(descriptor)
    scratch = Path(name)
    scratch.chmod(0o666 & ~umask())
    try:
        with _replaced(path, scratch) as file:
            yield file
    finally:  # also after a Ctrl-C, because nobody writes or deletes a file of this name again
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Let the body write a file, which replaces an existing one when the body has ended without an error."""
    with _replaced(path, path.with_name(f".{path.name}{PARTIAL}")) as file:
        yield file


@contextlib.contextmanager
def _replaced(path: Path, scratch: Path) -> Iterator[BinaryIO]:
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


def umask() -> int:
    """Return the permissions that new files of this process do not have."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file; raise an OSError if it is none, or has more than ``most``
    bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, "is too large", str(path))
    return content


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal; raise an OSError if it is none."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: Path) -> BufferedReader:
    """Open a file of a user's for reading; raise an OSError unless it is regular: a pipe could be read
    forever."""
    flags = os.O_RDONLY
    if sys.platform != "win32":
        flags |= os.O_NONBLOCK | os.O_CLOEXEC
    file = open(os.open(path, flags), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def check_regular(paths: Iterable[Path], field: str) -> None:
    """Raise an InputError at ``field`` if one of a user's paths is no file and no directory: the library that
    reads it might read forever."""
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(field, f"{path} is not a regular file", "Move it away")


def check_kinds(directory: Path) -> None:
    """Raise an InputError if something below a directory of this package is no regular file, or a directory
    has a file's name: a pipe would be read forever."""
    for parent, folders, files in os.walk(directory):
        for path in sorted(Path(parent, name) for name in (*files, *folders)):
            with contextlib.suppress(FileNotFoundError):  # a link to nothing, or deleted meanwhile
                mode = path.stat().st_mode
                if not (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and path.suffix not in SUFFIXES)):
                    raise InputError(str(path), "is not a regular file", "Move it away, or restore the file")
        folders[:] = sorted(set(folders) - NOT_LOOKED_INTO)


def append_at(file: FileIO, end: int, content: bytes) -> None:
    """Write all of ``content`` after the first ``end`` bytes of an unbuffered file, or raise an OSError and
    nothing.

    Bytes after ``end`` are the remains of an earlier write that failed, and are cut off.
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
    """Create a new directory beside ``directory``, one of sparring's own, to be passed to
    :func:`put_in_place`."""
    scratch = directory.with_name(f".{directory.name}{PARTIAL}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def users_scratch_for(directory: Path) -> Path:
    """Do as :func:`scratch_for` does, where the user asks for a directory: beside it may be anything."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=PARTIAL, dir=directory.parent))
    scratch.chmod(0o777 & ~umask())
    return scratch


def put_in_place(scratch: Path, directory: Path) -> None:
    """Sync everything in ``scratch``, rename it to ``directory``, and sync the name.

    An existing directory is renamed, replaced and then deleted; what others put there is moved to the new
    one. After a kill between the two renames, :func:`finish_replacements` restores it.
    """
    for path in [*scratch.rglob("*"), scratch]:
        sync(path)
    replaced = directory.with_name(f".{directory.name}{REPLACED}")
    if directory.exists():
        _finish_replacement(replaced, directory)
        directory.rename(replaced)
    scratch.rename(directory)
    sync(directory.parent)
    _finish_replacement(replaced, directory)


def finish_replacements(parent: Path, names: str) -> None:
    """Clean up after a kill: restore directories that were not replaced yet; delete those that were.

    ``names`` is a regular expression of the directories that sparring replaces in ``parent``.
    """
    for replaced in parent.glob(f".*{REPLACED}"):
        name = replaced.name[1:].removesuffix(REPLACED)
        if re.fullmatch(names, name):
            _finish_replacement(replaced, replaced.with_name(name))


def _finish_replacement(replaced: Path, directory: Path) -> None:
    if not replaced.is_dir():
        return
    if not directory.exists():
        replaced.rename(directory)
        return
    remove_directory(replaced, SAVED_FILES | {path.name for path in directory.rglob("*")})
    for path in sorted(replaced.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            moved = directory / path.relative_to(replaced)
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)
    remove_directory(replaced)


def remove_directory(directory: Path, written: Collection[str] = SAVED_FILES) -> None:
    """Delete the files of these names and folders of such files; a directory that holds others stays."""
    if directory.is_symlink():
        return
    for path in sorted(directory.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.name in written:
                path.unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def remove_partial(directory: Path, names: str) -> None:
    """Delete what a kill left of unfinished writes of files that match the expression ``names``."""
    for path in list(directory.glob(f".*{PARTIAL}")):
        if not re.fullmatch(names, path.name[1:].removesuffix(PARTIAL)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def lock_directory(directory: Path) -> int:
    """Lock a directory for writing until the returned descriptor is closed, or this process ends.

    Raises BlockingIOError if another process holds the lock.
    """
    lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    for again in range(LOOKS, -1, -1):
        try:
            locks.lock(lock, wait=False)
            break
        except OSError:
            if not again:
                os.close(lock)
                raise
            time.sleep(LOOK_SECONDS)
    return lock


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return locks.is_held(lock)
    finally:
        os.close(lock)


def sync(path: Path) -> None:
    """Force a file's content or a directory's names to disk. Windows cannot open a directory for that."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
