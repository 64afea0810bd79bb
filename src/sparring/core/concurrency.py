"""What runs at once: the limits where nobody sets others, CallSlots, tasks that end together, and retries."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from sparring.core.errors import InputError, is_transient
from sparring.core.own_code import is_from_outside, own_failure
from sparring.core.text import one_line

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """No attempt succeeded; ``reason`` and ``error_type`` are those of the last one."""

    reason: str
    error_type: str


async def with_retries(attempt: Callable[[int], Awaitable[Result]], retries: int) -> Result | Failure:
    """Await ``attempt(number)``, counting from 0, until one succeeds, at most ``retries`` times after
    transient failures.

    A cancellation that does not come from outside is transient too. An InputError passes: no attempt could
    succeed.
    """
    reason = error_type = ""
    for number in range(retries + 1):
        try:
            return await attempt(number)
        except InputError:
            raise
        except BaseException as error:  # whatever an episode raises costs only that episode
            if is_from_outside(error):
                raise
            reason, error_type = own_failure(error), one_line(type(error).__name__)
            if isinstance(error, asyncio.CancelledError):
                reason = f"a call that the episode awaited was cancelled: {reason}"
            elif not is_transient(error):
                break
    return Failure(reason, error_type)


async def all_results(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines at once and return their results in the same order.

    If one raises, the others are cancelled, and its exception is raised unchanged. (``asyncio.gather`` would
    let them run on, and a ``TaskGroup`` alone would raise a group.)
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


MAX_CALLS = 4096
"""Model calls in flight."""
EPISODE_TIMEOUT = 3600.0
"""Seconds for one attempt at an episode."""
RETRIES = 2
"""Further attempts at an episode that failed for a transient reason."""
MAX_QUEUE = 16_384
"""Requests that wait or are answered in an engine."""
MAX_CACHED_TOKENS = 32_768
"""Tokens that the embedded engine keeps computed."""


class CallSlots:
    """A first-come, first-served semaphore whose ``limit`` can change while calls are in flight or waiting.

    Unlike ``asyncio.Semaphore`` it is not bound to an event loop, so one arena serves several
    ``asyncio.run``.
    """

    def __init__(self, limit: int) -> None:
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        """Change the limit; less than 1 raises an InputError."""
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
