"""CallSlots: how many model calls may be in flight."""

import asyncio
from collections import deque

from selfplay.core.errors import InputError


class CallSlots:
    """A semaphore whose limit can be changed while calls are in flight and waiting; first come, first served.

    Unlike ``asyncio.Semaphore`` it belongs to no event loop, so one arena can be used in several
    ``asyncio.run`` in turn.

    Args:
        limit: most slots taken at once, 1 or more.
    """

    def __init__(self, limit: int) -> None:
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        """Change the limit. With a lower one nobody gets a slot until enough have been given back.

        Raises:
            InputError: nothing could ever run.
        """
        if limit < 1:
            raise InputError("concurrency", f"{limit} calls in flight are none", "Give 1 or more")
        self._limit = limit
        self._hand_out()

    @property
    def limit(self) -> int:
        """Most slots taken at once."""
        return self._limit

    def take(self) -> bool:
        """Take a slot if one can be had without waiting; returns whether it was."""
        free = not self._waiting and self._taken < self._limit
        self._taken += free
        return free

    @property
    def contended(self) -> bool:
        """Whether somebody waits for a slot."""
        return bool(self._waiting)

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self.take():
            return
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._hand_out()  # those who wait may all have been cancelled
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # cancelled after it was handed out
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        if self._waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self._limit:
            slot = self._waiting.popleft()
            if not slot.done():
                self._taken += 1
                slot.set_result(None)
