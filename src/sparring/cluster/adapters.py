"""Copies of adapters for engines whose node does not see the learner's directory.

Beside the command, :class:`AdapterFiles` puts an adapter's files into Ray's object store, from which nodes
fetch them, also from each other. Each engine keeps copies in the :class:`AdapterCache` of its node. Nothing
here is trusted: a copy has the hash of the original, and :mod:`sparring.engine.adapters` checks that
the engine answers with the adapter that the learner wrote.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.core import InputError, SparringError, TransientError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE
from sparring.core.files import remove_directory
from sparring.core.locks import lock
from sparring.engine.adapters import file_hash

FILES = (ADAPTER_FILE, ADAPTER_CONFIG, DELIVERY_FILE, MANIFEST_FILE)
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
        sha256: hash of the weight file.
        files: the contents by name, or something to await for them.
    """

    key: str
    sha256: str
    files: Any


class AdapterFiles:
    """See the module.

    Args:
        put: puts the files of an adapter into the object store; returns what to await for them.
    """

    def __init__(self, put: Callable[[dict[str, bytes]], Any]) -> None:
        self._put = put
        self._copies: dict[tuple[str, int], AdapterCopy] = {}

    def check(self) -> None:
        """Return: there is nothing to restore."""

    async def copy(self, path: str) -> AdapterCopy:
        """Return the adapter in a directory.

        Raises:
            SparringError: there is no adapter.
        """
        try:
            changed = (Path(path) / ADAPTER_FILE).stat().st_mtime_ns
            if (path, changed) not in self._copies:
                files = await asyncio.to_thread(_read, Path(path))
                sha256 = hashlib.sha256(files[ADAPTER_FILE]).hexdigest()
                self._copies[path, changed] = AdapterCopy(_key(files), sha256, self._put(files))
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
            if not await asyncio.to_thread(_has, place, copy.sha256):
                files = await copy.files if isinstance(copy.files, Awaitable) else copy.files
                await asyncio.to_thread(self._keep, place, files, copy.sha256)
        except RayTaskError as error:
            raise error_of("AdapterFiles", error) from error
        except RayError as error:
            raise TransientError(f"the adapter at {path} was lost on its way") from error
        return place

    def _keep(self, place: Path, files: dict[str, bytes], sha256: str) -> None:
        if hashlib.sha256(files[ADAPTER_FILE]).hexdigest() != sha256:
            raise TransientError(f"an adapter with hash {sha256[:12]} was damaged on its way")
        self._directory.mkdir(parents=True, exist_ok=True)
        with Path(f"{self._directory}.lock").open("w") as file:
            lock(file.fileno(), wait=True)
            if _has(place, sha256):  # another engine of this node was faster, and may be reading it
                return
            scratch = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
            for name in FILES:
                if name in files:
                    (scratch / name).write_bytes(files[name])
            shutil.rmtree(place, ignore_errors=True)
            scratch.rename(place)
            copies = [path for path in self._directory.iterdir() if _COPY.fullmatch(path.name)]
            for old in sorted(copies, key=_last_use)[:-KEPT_COPIES]:
                remove_directory(old)


def _key(files: dict[str, bytes]) -> str:
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _read(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()}


def _has(place: Path, sha256: str) -> bool:
    """Return whether there is a whole copy, and note that it is used."""
    try:
        if file_hash(place) != sha256:
            return False
        os.utime(place)
    except (InputError, FileNotFoundError):  # another engine of this node deletes old copies too
        return False
    return True


def _last_use(place: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # another engine of this node deletes old copies too
        return place.stat().st_mtime
    return 0.0
