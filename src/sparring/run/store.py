"""RunStore: a copy of a run in an object store, and ``StoredFiles``, which keeps it like the run's files.

::

    claims/000002              the holder that may write; of several, the one with the highest number
    objects/000002-SHA256      the bytes of a file, or of a part of a file that grows, written in claim 2
    states/000002-00000017     the 17th state of claim 2: which objects make up which file

An object is never written again with other bytes, and a state is written after its objects. So the newest
state is whole, whenever its writer was killed.
"""

import hashlib
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from sparring.core import InputError, SparringError
from sparring.core.errors import first_line, imported
from sparring.core.files import sha256_of
from sparring.core.manifest import sealed, unsealed
from sparring.run.run_layout import is_for_store

FORMAT = 1
FIELD = "run.store"
SECONDS, BYTES_PER_SECOND = 60, 50_000
"""How long a request may take, and a transfer at least in addition."""
_OBJECT, _STATE = r"\d{6,}-[0-9a-f]{64}", r"\d{6,}-\d{8,}"
Part = tuple[Annotated[str, msgspec.Meta(pattern=rf"^{_OBJECT}$")], Annotated[int, msgspec.Meta(ge=0)]]
"""An object's name, and its size in bytes."""
Files = dict[str, list[Part]]
"""The parts of each file, by its path in the run."""


class _State(msgspec.Struct):
    format: int
    files: Files


class StoreAway(SparringError):
    """The store cannot be reached, or refuses; another attempt may succeed."""


class RunStore:
    """See the module. Every request has a time limit where the file system of the URL knows one.

    Raises InputError if a package is missing, and in all methods StoreAway.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        fsspec = imported(FIELD, "store", "fsspec")
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if url.startswith("file:"):
            options["auto_mkdir"] = True
        try:
            self._files, self._root = fsspec.url_to_fs(url, **options)
        except ImportError as error:
            problem = f"{url} needs another package ({first_line(error)})"
            raise InputError(FIELD, problem, "Run: pip install 'sparring[store]'") from error

    def holder(self) -> tuple[int, str]:
        """Return the highest claim and who holds it; 0 and nobody before the first."""
        with self._reaching():
            number = max((int(name) for name in self._names("claims") if name.isdecimal()), default=0)
            return number, self._read("claims", f"{number:06d}").decode(errors="replace") if number else ""

    def claim(self, number: int, holder: str) -> None:
        """Take a claim; raise an InputError if another host has taken it meanwhile."""
        name = f"{number:06d}"
        with self._reaching(), suppress(FileExistsError):
            self._write("claims", name, holder.encode(), mode="create")
        if self.holder() != (number, holder):  # a request that was repeated finds its own claim
            raise InputError(FIELD, f"{self.url} is being resumed on another host", "Stop one of the two")

    def states(self) -> list[str]:
        """Return the names of the states, oldest first."""
        with self._reaching():
            return sorted(name for name in self._names("states") if re.fullmatch(_STATE, name))

    def objects(self) -> set[str]:
        """Return the names of all objects, those of no state included."""
        with self._reaching():
            return {name for name in self._names("objects") if re.fullmatch(_OBJECT, name)}

    def newest(self) -> Files | None:
        """Return the files of the newest whole state; ``None`` if there is no state.

        Raises InputError if none is whole, or another version of sparring wrote it.
        """
        names = self.states()
        for name in reversed(names):
            with self._reaching():
                content = self._read("states", name)
            try:
                state = msgspec.convert(unsealed(content), _State)
            except (ValueError, msgspec.ValidationError):
                continue
            if state.format != FORMAT:
                problem = f"{self.url} was written by another version of sparring"
                raise InputError(FIELD, problem, "Resume with the version that wrote it")
            if all(map(is_for_store, state.files)):
                return state.files
        if names:
            raise InputError(FIELD, f"every state in {self.url} is damaged", "Start a new run")
        return None

    def put_state(self, claim: int, number: int, files: Files) -> str:
        """Write a state whose objects are all there; return its name."""
        name = f"{claim:06d}-{number:08d}"
        with self._reaching():
            self._write("states", name, sealed({"format": FORMAT, "files": files}))
        return name

    def put(self, name: str, path: Path, start: int, size: int) -> None:
        """Write an object: ``size`` bytes of a file from ``start`` on."""
        with self._reaching():
            if start == 0 and size == path.stat().st_size:
                self._files.put_file(str(path), self._place("objects", name), **self._limit(size))
                return
            with path.open("rb") as file:
                file.seek(start)
                self._write("objects", name, file.read(size))

    def remove(self, folder: str, names: list[str]) -> None:
        """Delete states or objects."""
        if names:
            with self._reaching(), suppress(FileNotFoundError):
                self._files.rm([self._place(folder, name) for name in names], **self._limit())

    def download(self, files: Mapping[str, list[Part]], directory: Path) -> list[str]:
        """Write the files into a new directory; return lines about those that are missing or damaged.

        A journal is never without its parts: raises InputError if one is missing or damaged.
        """
        lost = []
        for name, parts in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as whole:
                damaged = next((one for one, size in parts if not self._append(one, size, path, whole)), None)
            if damaged is None:
                continue
            path.unlink()
            problem = f"{name} is missing or damaged in {self.url} (objects/{damaged})"
            if name.startswith("state/") or "/" not in name:
                raise InputError(FIELD, problem, "Restore the object, or start a new run")
            lost.append(problem)
        return lost

    def _append(self, name: str, size: int, path: Path, whole: BinaryIO) -> bool:
        part = path.with_name(f".{path.name}.part")
        try:
            with self._reaching(), suppress(FileNotFoundError):
                self._files.get_file(self._place("objects", name), str(part), **self._limit(size))
            if not part.exists() or sha256_of(part) != _hash_in(name):
                return False
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole)
            return True
        finally:
            part.unlink(missing_ok=True)

    def _names(self, folder: str) -> list[str]:
        try:
            found = self._files.ls(self._place(folder, ""), detail=False, **self._limit())
        except FileNotFoundError:
            return []
        return [name for path in found if (name := str(path).rpartition("/")[2])]

    def _read(self, folder: str, name: str) -> bytes:
        content: bytes = self._files.cat_file(self._place(folder, name), **self._limit())
        return content

    def _write(self, folder: str, name: str, content: bytes, **options: str) -> None:
        place = self._place(folder, name)
        self._files.pipe_file(place, content, **options, **self._limit(len(content)))

    def _place(self, folder: str, name: str) -> str:
        return f"{self._root.rstrip('/')}/{folder}/{name}".rstrip("/")

    def _limit(self, size: int = 0) -> dict[str, float]:
        return {"timeout": SECONDS + size / BYTES_PER_SECOND} if self._files.async_impl else {}

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except SparringError:
            raise
        except Exception as error:
            raise StoreAway(f"{self.url} cannot be used ({first_line(error)})") from error


KEPT_STATES = 2
"""The newest states that stay: another host may be about to read the one before the last."""
PIECE = 1 << 20


class StoredFiles:
    """The files of a run that a store has, for the claim that writes there.

    Attributes:
        sent: bytes of the objects that were written.
    """

    def __init__(self, store: RunStore, claim: int, holder: str) -> None:
        self._store, self._claim, self._holder = store, claim, holder
        files = store.newest() or {}
        self._kept = [files]
        self._parts = dict(files)
        self._states, self._number = store.states(), 0
        self._there = store.objects()
        self._objects = {_hash_in(name): name for name in _named(files) if name in self._there}
        self.sent = 0

    def is_over(self) -> bool:
        """Whether another host has claimed the run since."""
        return self._store.holder() != (self._claim, self._holder)

    def put_file(self, name: str, path: Path) -> None:
        """Upload what is new of a file: the end of one that has grown, with smaller parts before it."""
        size, start, parts = path.stat().st_size, 0, list[Part]()
        with path.open("rb") as file:
            for part, length in self._parts.get(name, []):
                sha256, end = _hash_in(part), start + length
                if end > size or self._objects.get(sha256) != part or _hash(file, length) != sha256:
                    break
                parts.append((part, length))
                start = end
            while parts and start < size and parts[-1][1] <= size - start:
                start -= parts.pop()[1]
            file.seek(start)
            sha256 = _hash(file, size - start)
        if start < size or not parts:
            parts.append((self._put(sha256, path, start, size - start), size - start))
        self._parts[name] = parts

    def put_state(self, names: Collection[str]) -> None:
        """Make a state of these uploaded files; delete what neither it nor the one before needs."""
        files = {name: self._parts[name] for name in names}
        self._number += 1
        self._states.append(self._store.put_state(self._claim, self._number, files))
        self._kept = [*self._kept, files][-KEPT_STATES:]
        if self.is_over():  # who has claimed the run reads one of the two states that stay
            return
        needed = {name for files in self._kept for name in _named(files)}
        self._store.remove("states", self._states[:-KEPT_STATES])
        self._store.remove("objects", sorted(self._there - needed))
        self._states = self._states[-KEPT_STATES:]
        self._there &= needed
        self._objects = {_hash_in(name): name for name in needed}
        self._parts = dict(files)

    def _put(self, sha256: str, path: Path, start: int, size: int) -> str:
        if sha256 not in self._objects:
            name = f"{self._claim:06d}-{sha256}"  # a late writer of an earlier claim deletes none of this one
            self._there.add(name)
            self._store.put(name, path, start, size)
            self._objects[sha256] = name
            self.sent += size
        return self._objects[sha256]


def _hash_in(name: str) -> str:
    return name.rpartition("-")[2]


def _named(files: Files) -> Iterator[str]:
    return (name for parts in files.values() for name, _ in parts)


def _hash(file: BinaryIO, size: int) -> str:
    """Return the SHA-256 of the next bytes."""
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
