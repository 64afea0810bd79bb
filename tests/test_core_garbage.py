"""Cycles that games leave behind are freed in about a minute, however long the games last."""

import asyncio
import gc
import weakref

import pytest

from ray_simulation import VirtualTimeLoop
from sparring.core import garbage_collection
from sparring.core.garbage_collection import SECONDS_BETWEEN_COLLECTIONS, infrequent_garbage_collection


class Cycle:
    """Refers to itself, so that only Python's collector can free it."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def only_new_objects(monkeypatch):
    """What other tests have left is not searched again and again."""
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    monkeypatch.setattr(garbage_collection, "SECONDS_BETWEEN_COLLECTIONS", SECONDS_BETWEEN_COLLECTIONS)


def run(scenario):
    loop = VirtualTimeLoop()
    loop.run_until_complete(scenario())
    loop.close()


def test_a_cycle_is_freed_while_games_continue():
    async def scenario():
        with infrequent_garbage_collection():
            lost = weakref.ref(Cycle())
            await asyncio.sleep(59.0)
            assert lost() is not None
            await asyncio.sleep(2.0)
            assert lost() is None
            later = weakref.ref(Cycle())
            await asyncio.sleep(61.0)
            assert later() is None

    run(scenario)


def test_pythons_collector_is_off_while_games_are_played_and_on_afterwards():
    async def scenario():
        with infrequent_garbage_collection():
            assert not gc.isenabled()
            with infrequent_garbage_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled()

    run(scenario)
