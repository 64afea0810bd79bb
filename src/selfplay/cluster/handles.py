"""Handles: how services call each other, in one process and on a cluster alike."""

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Named:
    """The name of an actor, passed to another actor's constructor in place of the handle.

    Ray treats the handle itself as an object that may get lost, and prints a warning to the terminal.
    """

    name: str
    namespace: str


Handle = Any
"""A handle of an actor, its :class:`Named`, or ``None``."""


def found(argument: Handle) -> Any:
    """Return the handle of a named actor; any other argument unchanged."""
    if not isinstance(argument, Named):
        return argument
    import ray

    return ray.get_actor(argument.name, argument.namespace)


def still_there(arguments: Sequence[Handle]) -> list[Any]:
    """Return the handles of those named actors that exist; other arguments unchanged.

    An actor that has died for good is not found any more.
    """
    handles = []
    for argument in arguments:
        with contextlib.suppress(ValueError):  # Ray's error for an unknown name
            handles.append(found(argument))
    return handles


class LocalHandle:
    """A service of this process, called like a Ray actor: ``await handle.size.remote()``.

    The call runs as a task of its own, so it begins when the caller yields to the event loop.
    """

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> "_LocalMethod":
        return _LocalMethod(getattr(self._service, name))


class _LocalMethod:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        """Call the method; return a task, which need not be awaited."""
        return asyncio.get_running_loop().create_task(self._call(args, kwargs))

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._method(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
