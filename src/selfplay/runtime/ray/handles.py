"""Handles: how services call each other, in one process as on a cluster."""

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Named:
    """An actor's handle on its way into another actor's constructor: its name.

    Ray takes the handle itself for an object that may get lost, and warns of it on the terminal.
    """

    name: str
    namespace: str


def found(argument: Any) -> Any:
    """The handle of a named actor, or whatever else was given."""
    if not isinstance(argument, Named):
        return argument
    import ray

    return ray.get_actor(argument.name, argument.namespace)


class LocalHandle:
    """A service of this process, called like a Ray actor: ``await handle.size.remote()``.

    The call runs as a task of its own, so it begins when the caller lets go of the event loop.
    """

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> "_LocalMethod":
        return _LocalMethod(getattr(self._service, name))


class _LocalMethod:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        """Call it; returns what can be awaited, once or never."""
        return asyncio.get_running_loop().create_task(self._call(args, kwargs))

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._method(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
