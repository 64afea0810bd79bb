"""Copies of adapters for engines whose node does not see the learner's directory.

Beside the command, :class:`AdapterFiles` puts an adapter's files into Ray's object store, from which nodes
fetch them, also from each other. Each engine keeps copies in the :class:`AdapterCache` of its node. Nothing
here is trusted: the files of a copy have the hashes of the originals, and :mod:`sparring.engine.adapters`
checks that the engine answers with the adapter that the learner wrote.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.core import SparringError, TransientError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE
from sparring.core.files import remove_directory
from sparring.core.locks import lock

FILES = (ADAPTER_FILE, ADAPTER_CONFIG, DELIVERY_FILE, MANIFEST_FILE)
COMMAND_FILES = "CommandFiles"
"""The name of the actor that is beside the command."""
_COPY = re.compile(r"[0-9a-f]{64}")
KEPT_OBJECTS = 4
"""How many adapters stay in the object store."""
KEPT_COPIES = 16
"""How many adapters stay in the cache of a node."""


@dataclass(frozen=True)
class AdapterCopy:
    """An adapter in the object store.

    Attributes:
        key: hash of all files, in hexadecimal: versions with the same weights have other descriptions.
        files: the contents by name, or something to await for them.
    """

    key: str
    files: Any


class AdapterFiles:
    """See the module.

    Args:
        put: puts the files of an adapter into the object store; returns what to await for them.
    """

    def __init__(self, put: Callable[[dict[str, bytes]], Any]) -> None:
        self._put = put
        self._copies: dict[tuple[str, tuple[int, ...]], AdapterCopy] = {}

    def check(self) -> None:
        """Return: there is nothing to restore."""

    async def copy(self, path: str) -> AdapterCopy:
        """Return the adapter in a directory.

        Raises:
            SparringError: there is no adapter.
        """
        try:
            changed = _times(Path(path))
            if (path, changed) not in self._copies:
                files = await asyncio.to_thread(_read, Path(path))
                self._copies[path, changed] = AdapterCopy(_key(files), self._put(files))
        except OSError as error:
            problem = f"there is no adapter at {path} on the machine of the command ({error.strerror})"
            raise SparringError(problem) from error
        copy = self._copies[path, changed] = self._copies.pop((path, changed))
        for old in list(self._copies)[:-KEPT_OBJECTS]:
            del self._copies[old]
        return copy


class AdapterCache:
    """Copies of adapters in a directory of this node, by hash; the least recently used are deleted.

    Args:
        files: a handle of :class:`AdapterFiles`.
        directory: the cache's directory, which engines of this node may share.
    """

    def __init__(self, files: Any, directory: Path) -> None:
        self._files = files
        self._directory = directory

    async def fetch(self, path: str) -> Path:
        """Return the directory of a copy of the adapter that is at ``path`` elsewhere.

        Raises:
            SparringError: there is none.
            TransientError: it was damaged or lost on its way.
        """
        try:
            copy: AdapterCopy = await self._files.copy.remote(path)
            place = self._directory / copy.key
            if not await asyncio.to_thread(_is_whole, place):
                files = await copy.files if isinstance(copy.files, Awaitable) else copy.files
                await asyncio.to_thread(self._keep, place, files)
        except RayTaskError as error:
            raise error_of(COMMAND_FILES, error) from error
        except RayError as error:
            raise TransientError(f"the adapter at {path} was lost on its way") from error
        return place

    def _keep(self, place: Path, files: dict[str, bytes]) -> None:
        if _key(files) != place.name:
            raise TransientError(f"the adapter {place.name[:12]} was damaged on its way")
        self._directory.mkdir(parents=True, exist_ok=True)
        with Path(f"{self._directory}.lock").open("w") as file:
            lock(file.fileno(), wait=True)
            if _is_whole(place):  # another engine of this node was faster, and may be reading it
                return
            scratch = self._directory / f".{platform.node()}"  # nodes that share a home do not share the lock
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            for name, content in files.items():
                (scratch / name).write_bytes(content)
            shutil.rmtree(place, ignore_errors=True)
            scratch.rename(place)
            copies = [path for path in self._directory.iterdir() if _COPY.fullmatch(path.name)]
            for old in sorted(copies, key=_last_use)[:-KEPT_COPIES]:
                remove_directory(old)


def _times(directory: Path) -> tuple[int, ...]:
    """Return when an adapter's files were written; raise an OSError if there are no weights."""
    described = (directory / name for name in FILES[1:])
    paths = [directory / FILES[0], *(path for path in described if path.exists())]
    return tuple(path.stat().st_mtime_ns for path in paths)


def _key(files: dict[str, bytes]) -> str:
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _read(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()}


def _is_whole(place: Path) -> bool:
    """Return whether there is a whole copy, and note that it is used."""
    try:
        if _key(_read(place)) != place.name:
            return False
        os.utime(place)
    except OSError:  # another engine of this node deletes old copies too
        return False
    return True


def _last_use(place: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # another engine of this node deletes old copies too
        return place.stat().st_mtime
    return 0.0
