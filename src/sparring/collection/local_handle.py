"""LocalHandle: a service of this process, called like an actor of a cluster."""

import inspect
from collections.abc import Generator
from typing import Any


class LocalHandle:
    """Calls a service of this process as Ray calls an actor: ``await handle.size.remote()``."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> "_LocalMethod":
        return _LocalMethod(getattr(self._service, name))


class _LocalMethod:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return an awaitable."""
        result = self._method(*args, **kwargs)
        return result if inspect.isawaitable(result) else _Answer(result)


class _Answer:
    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[None, None, Any]:
        return self._result
        yield
