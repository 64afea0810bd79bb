"""A collector of a cluster, called without Ray."""

import asyncio

from pool_requests import PLAY
from sparring.cluster.collector import CollectorService
from sparring.cluster.engines.client import EngineClient
from sparring.collection.buffer import BufferService
from sparring.collection.buffers import StepBuffer
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.collection.pool_state import Jobs


class Pool(PoolService):
    """Counts the registrations, and notes the requests that it waits for."""

    registered = 0

    def register(self, *arguments, **options) -> int:
        self.registered += 1
        return super().register(*arguments, **options)

    async def newest(self, known_step: int, wait: float = 60.0) -> Jobs:
        return await super().newest(known_step, 60.0)


async def test_a_call_to_collect_that_is_repeated_while_it_is_under_way_waits_for_it():
    """Ray repeats a call if a connection breaks. Two that played would take each other's games away."""
    pool = Pool("mirror", 1)
    pool.add_checkpoint(None, 0)
    buffer = LocalHandle(BufferService(StepBuffer(100)))
    collector = CollectorService("c", EngineClient([]), buffer, LocalHandle(pool), None, PLAY, {})
    calls = [asyncio.create_task(collector.collect(0)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.registered == 1
    assert not any(call.done() for call in calls)
    pool.stop()
    await asyncio.gather(*calls)
    assert pool.registered == 1
