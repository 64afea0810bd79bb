"""Middleware around every request: its path, the id of its response, a line in the log for a fault."""

import logging
import re
import traceback
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfplay.core.text import one_line
from selfplay.inference.server_schema import ApiError

REQUEST_ID_HEADER = "x-request-id"
_log = logging.getLogger("uvicorn.error")


class Paths:
    """Middleware that takes surplus slashes out of paths, which clients make of an address that ends in one.

    A redirection would not do: not every client follows it, and behind a proxy it leads to another address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            scope = {**scope, "path": re.sub("/+", "/", scope["path"]).rstrip("/") or "/"}
        await self.app(scope, receive, send)


class Responses:
    """Middleware that gives every response an id in ``x-request-id``, and answers 500 to a fault.

    The log has the same id, the error and the place where it happened, in one line. A response that has begun
    is broken off.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number, begun = f"req_{uuid.uuid4().hex}", False

        async def send_some(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), number.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_some)
        except Exception as error:  # noqa: BLE001 (a fault of the server; the client is told)
            problem = f"{type(error).__name__}: {error}"
            place = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{number} {scope['method']} {scope['path']}: {problem} ({place.filename}:{place.lineno})"
            _log.error("%s", one_line(line))
            if not begun:
                await ApiError(500, problem).response()(scope, receive, send_some)
