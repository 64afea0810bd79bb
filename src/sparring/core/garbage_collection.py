"""Garbage collection that does not slow down thousands of episodes in flight.

Their millions of objects are alive and hold no cycles worth finding, but Python's collector would traverse
all of them again and again. That took half of the time of a game that needs no model.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

SECONDS_BETWEEN_COLLECTIONS = 60.0
LARGEST_SHARE = 0.05
"""Largest share of the time that collections may take while the body runs."""

_last_collection = monotonic()


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Collect cycles only once a minute while the body runs in an event loop, or less often if collections
    would take more than a twentieth of the time.

    Objects that are alive at the end are set aside (``gc.freeze``) until the next such block begins; that
    block collects at once if the last collection was more than a minute ago.
    """
    if not gc.isenabled():
        yield
        return
    timer = _Timer()
    try:
        gc.unfreeze()
        if monotonic() - _last_collection > SECONDS_BETWEEN_COLLECTIONS:
            _collect()
        gc.disable()
        yield
    finally:
        timer.stop()
        gc.freeze()
        gc.enable()


class _Timer:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(SECONDS_BETWEEN_COLLECTIONS, self._look)

    def _look(self) -> None:
        seconds = _collect()
        pause = max(SECONDS_BETWEEN_COLLECTIONS, seconds / LARGEST_SHARE)
        self._next = self._loop.call_later(pause, self._look)

    def stop(self) -> None:
        self._next.cancel()


def _collect() -> float:
    global _last_collection
    started = monotonic()
    gc.collect()
    _last_collection = monotonic()
    return _last_collection - started


def raise_collection_thresholds() -> None:
    """Raise Python's collection thresholds in a process that only serves requests, whose long-lived objects
    would be traversed again and again."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
