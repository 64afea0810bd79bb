"""Garbage collection, kept out of the way of thousands of episodes in flight.

Their millions of objects are alive and hold no cycles worth looking for, but Python's collector would walk
through all of them again and again: half of the time of a game that needs no model.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

SECONDS_BETWEEN_COLLECTIONS = 60.0

_last_collection = monotonic()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Let the body run without looking for cycles, and let what it leaves be looked at later.

    What is alive afterwards is set aside (``gc.freeze``) until the next such block begins; that one looks for
    cycles in everything once a minute, so that none stays for good.
    """
    global _last_collection
    if not gc.isenabled():
        yield
        return
    gc.unfreeze()
    if monotonic() - _last_collection > SECONDS_BETWEEN_COLLECTIONS:
        gc.collect()
        _last_collection = monotonic()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def look_for_garbage_seldom() -> None:
    """For a process that only serves: have Python look for cycles where a hundred times as much is new.

    What lives long, stored steps say, is looked through a hundredth as often: it was most of a buffer's time.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
