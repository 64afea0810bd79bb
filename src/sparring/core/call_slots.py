"""CallSlots: the limit on model calls in flight."""

import asyncio
from collections import deque

from sparring.core.errors import InputError


class CallSlots:
    """A first-come, first-served semaphore whose limit can change while calls are in flight or waiting.

    Unlike ``asyncio.Semaphore`` it is not bound to an event loop, so one arena can be used in several
    successive calls of ``asyncio.run``.

    Args:
        limit: maximum number of slots taken at once, 1 or more.
    """

    def __init__(self, limit: int) -> None:
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        """Change the limit. After it is lowered, no slot is handed out until enough have been released.

        Raises:
            InputError: ``limit`` is less than 1, so nothing could ever run.
        """
        if limit < 1:
            raise InputError("concurrency", f"a limit of {limit} allows no calls", "Give 1 or more")
        self._limit = limit
        self._hand_out()

    @property
    def limit(self) -> int:
        """Maximum number of slots taken at once."""
        return self._limit

    def take(self) -> bool:
        """Take a slot if one is free without waiting; return whether a slot was taken."""
        free = not self._waiting and self._taken < self._limit
        self._taken += free
        return free

    @property
    def contended(self) -> bool:
        """Whether a call is waiting for a slot."""
        return bool(self._waiting)

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self.take():
            return
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._hand_out()  # all other waiting calls may have been cancelled
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # cancelled after it was handed out
                self.release()
            raise

    def release(self) -> None:
        """Release a slot."""
        self._taken -= 1
        if self._waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self._limit:
            slot = self._waiting.popleft()
            if not slot.done():
                self._taken += 1
                slot.set_result(None)
