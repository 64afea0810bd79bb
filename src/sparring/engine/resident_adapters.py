"""ResidentAdapters: which adapters an engine has loaded, in a fixed number of slots."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sparring.core.adapters import AdapterRef
from sparring.engine.adapters import Delivery

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
