"""Retries: a failed attempt is repeated only if another attempt may succeed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

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
    """Await ``attempt(number)``, counting from 0, until one succeeds.

    After a transient failure (see :func:`is_transient`) a further attempt is made, at most ``retries`` times.
    A cancellation that does not come from outside, for example of a shared connection, is also transient.

    Raises:
        InputError: the user's input is wrong, so no attempt could succeed.
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
