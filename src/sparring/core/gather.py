"""Concurrent tasks of which none outlives the others' failure."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def all_results(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines at once and return their results in the same order.

    If one raises, the others are cancelled, and when they have ended its exception is raised unchanged.
    (``asyncio.gather`` would let them run on, and a ``TaskGroup`` alone would raise a group.)
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
