"""Errors in OpenAI's format, and middleware around every request: its path, token, size and id."""

import logging
import re
import secrets
import traceback
import uuid
from collections.abc import Collection, Mapping

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparring.core.text import one_line
from sparring.engine.answering import TOKEN_VARIABLE
from sparring.engine.server_errors import ApiError


class LoadAdapterRequest(BaseModel):
    """Body of ``/v1/load_lora_adapter``, as in vLLM. ``load_inplace`` replaces the adapter of this name."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """Body of ``/v1/unload_lora_adapter``, as in vLLM."""

    lora_name: str = Field(min_length=1)


def error_response(error: ApiError) -> JSONResponse:
    """Return the HTTP response in OpenAI's format."""
    return JSONResponse(error.body(), error.status, error.headers)


OPEN_PATHS = ("/health", "/ping")
MAX_BODY_BYTES = 4 * 2**20
"""Maximum size of a request's body: several times the text of the longest contexts of current models."""
KEY_HEADER, KEY_PREFIX = b"x-api-key", b"tml-"
"""Where the SDK of Tinker sends the token, and how it wants it to begin."""
REQUEST_ID_HEADER = "x-request-id"
_log = logging.getLogger("uvicorn.error")


class EveryRequest:
    """Middleware that gives each response an id, checks the bearer token, limits bodies, and answers faults.

    Surplus slashes are taken out of paths: clients make them of an address that ends in one, and not every
    client follows a redirection. A body has at most ``MAX_BODY_BYTES``, or the ``larger`` limit of its path,
    with or without a Content-Length. A fault is answered with 500; the log has its id, the error and the
    place in one line. A response that has begun is broken off. ``open_paths`` need no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        larger: Mapping[str, int],
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self.app = app
        self.open_paths = open_paths
        self.token = token
        self.larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "path": re.sub("/+", "/", scope["path"]).rstrip("/") or "/"}
        number, begun = f"req_{uuid.uuid4().hex}", False

        async def send_some(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), number.encode())]
            await send(message)

        try:
            await self._checked(scope, receive, send_some)
        except Exception as error:  # noqa: BLE001 (a fault of the server; the client is told)
            problem = f"{type(error).__name__}: {error}"
            place = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{number} {scope['method']} {scope['path']}: {problem} ({place.filename}:{place.lineno})"
            _log.error("%s", one_line(line))
            if not begun:
                await error_response(ApiError(500, problem))(scope, receive, send_some)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        limit = self.larger.get(scope["path"], MAX_BODY_BYTES)
        too_large = f"the body has more than {limit:,} bytes. Send a shorter one"
        length = headers.get(b"content-length", b"")
        refusal = None
        if scope["path"] not in self.open_paths and not self._knows_token(headers):
            refusal = ApiError(
                401,
                f"The bearer token is missing or wrong. Send the server's {TOKEN_VARIABLE}",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        elif length.isdigit() and int(length) > limit:
            refusal = ApiError(413, too_large)
        received = 0

        async def receive_some() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, too_large)
            return message

        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
        else:
            await self.app(scope, receive_some, send)

    def _knows_token(self, headers: Mapping[bytes, bytes]) -> bool:
        if self.token is None:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        own, key = self.token.encode(), headers.get(KEY_HEADER, b"")
        if scheme.lower() == b"bearer":
            return secrets.compare_digest(given, own)
        return any(secrets.compare_digest(key, one) for one in (own, KEY_PREFIX + own))
