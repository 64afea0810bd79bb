"""The adapters of an engine: copies where its node does not see the learner's directory, and what is loaded.

Beside the command, :class:`AdapterFiles` puts an adapter's files into Ray's object store, from which nodes
fetch them, also from each other. Each engine keeps copies in the :class:`AdapterCache` of its node. Nothing
here is trusted: a copy has the hash of the original, and :mod:`sparring.engine.adapters` checks that
the engine answers with the adapter that the learner wrote.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.core import InputError, SparringError, TransientError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE, AdapterRef
from sparring.core.files import remove_directory
from sparring.engine.adapters import Delivery, file_hash

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
        sha256: hash of the weight file, in hexadecimal.
        files: the contents by name, or something to await for them.
    """

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
                self._copies[path, changed] = AdapterCopy(sha256, self._put(files))
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
            place = self._directory / copy.sha256
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
        with Path(f"{self._directory}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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


Load = Callable[[AdapterRef, str, Delivery | None], Awaitable[Delivery]]
"""(adapter, slot, proof of the adapter before it) -> its own proof"""


@dataclass(eq=False)
class _Resident:
    """An adapter that is loaded or being loaded; ``requests`` counts those that use it or wait for it."""

    name: str
    slot: str
    loading: asyncio.Task[Delivery]
    requests: int = 0

    @property
    def idle(self) -> bool:
        return self.loading.done() and not self.requests

    @property
    def delivery(self) -> Delivery | None:
        loaded = self.loading.done() and not self.loading.cancelled() and self.loading.exception() is None
        return self.loading.result() if loaded else None


class ResidentAdapters:
    """The adapters that an engine holds, in a fixed number of slots.

    Requests for an adapter that is not loaded wait together for one load. A load that fails fails all of
    them; later requests try again. If every slot is in use, a request that needs one waits at the head of a
    queue through which all requests pass, so that an adapter is not starved by others that are requested
    without a pause.

    Args:
        slots: names of the slots.
        load: loads an adapter into an empty slot and proves that it answers, or leaves the slot empty.
        drop: empties a slot that no request uses.
    """

    def __init__(self, slots: list[str], load: Load, drop: Callable[[str], Awaitable[None]]) -> None:
        self._empty = list(reversed(slots))
        self._load = load
        self._drop = drop
        self._resident: dict[tuple[str | None, int], _Resident] = {}  # in order of last use
        self._emptying: set[asyncio.Task[None]] = set()
        self._queue = asyncio.Lock()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many adapters are loaded."""
        return sum(one.delivery is not None for one in self._resident.values())

    @asynccontextmanager
    async def use(self, adapter: AdapterRef) -> AsyncIterator[str]:
        """Run the body with an adapter loaded; yield its slot."""
        key = (adapter.path, adapter.version)
        async with self._queue:
            if key not in self._resident:
                await self._begin_to_load(key, adapter)
            resident = self._resident[key] = self._resident.pop(key)
            resident.requests += 1
        try:
            await asyncio.shield(resident.loading)
            yield resident.slot
        finally:
            resident.requests -= 1
            self._changed.set()

    def delivery(self, adapter: AdapterRef) -> Delivery:
        """Return the proof of an adapter that is in use."""
        return self._resident[adapter.path, adapter.version].loading.result()

    async def settle(self) -> None:
        """Wait until nothing is being loaded or dropped."""
        loading = [one.loading for one in self._resident.values()]
        await asyncio.gather(*loading, *self._emptying, return_exceptions=True)

    async def _begin_to_load(self, key: tuple[str | None, int], adapter: AdapterRef) -> None:
        proofs = [one.delivery for one in self._resident.values() if one.name == adapter.name]
        before = next((proof for proof in reversed(proofs) if proof is not None), None)
        while not self._empty:
            await self._make_room()
        slot = self._empty.pop()
        loading = asyncio.create_task(self._fill(key, adapter, slot, before))
        loading.add_done_callback(self._loaded)
        self._resident[key] = _Resident(adapter.name, slot, loading)

    async def _make_room(self) -> None:
        """Evict the least recently used idle adapter; if there is none, wait for a change."""
        idle = next((key for key, one in self._resident.items() if one.idle), None)
        if idle is not None:
            emptying = asyncio.create_task(self._empty_slot(self._resident.pop(idle).slot))
            self._emptying.add(emptying)
            emptying.add_done_callback(self._emptied)
            await asyncio.shield(emptying)  # the request may be cancelled: the slot is emptied all the same
            return
        self._changed.clear()
        await self._changed.wait()

    async def _empty_slot(self, slot: str) -> None:
        try:
            await self._drop(slot)
        finally:
            self._empty.append(slot)

    def _emptied(self, emptying: "asyncio.Task[None]") -> None:
        self._emptying.discard(emptying)
        self._changed.set()
        if not emptying.cancelled():
            emptying.exception()

    async def _fill(
        self, key: tuple[str | None, int], adapter: AdapterRef, slot: str, before: Delivery | None
    ) -> Delivery:
        try:
            return await self._load(adapter, slot, before)
        except BaseException:
            del self._resident[key]
            self._empty.append(slot)
            raise

    def _loaded(self, loading: asyncio.Task[Delivery]) -> None:
        self._changed.set()
        if not loading.cancelled():
            loading.exception()  # all requests may be gone: then nothing else reads it
