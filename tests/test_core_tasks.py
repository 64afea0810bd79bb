"""Concurrent tasks of which none outlives the others' failure."""

import asyncio

import pytest

from sparring.core.concurrency import all_results


async def test_results_come_in_the_order_of_the_calls_not_of_their_ends() -> None:
    order: list[int] = []

    async def call(number: int) -> int:
        for _ in range(5 - number):
            await asyncio.sleep(0)
        order.append(number)
        return number

    assert await all_results(map(call, range(5))) == [0, 1, 2, 3, 4]
    assert order == [4, 3, 2, 1, 0]


async def test_the_first_error_arrives_as_it_is_after_the_others_have_ended() -> None:
    error, ended = ValueError("no"), []

    async def call(number: int) -> None:
        try:
            await asyncio.sleep(0)
            if number == 1:
                raise error
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    with pytest.raises(ValueError, match="no") as raised:
        await all_results(map(call, range(3)))
    assert raised.value is error
    assert sorted(ended) == [0, 1, 2]


async def test_a_cancellation_reaches_every_call() -> None:
    ended: list[int] = []

    async def call(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    task = asyncio.create_task(all_results(map(call, range(3))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
