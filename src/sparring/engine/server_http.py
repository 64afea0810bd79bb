"""Errors in OpenAI's format, and middleware around every request: its path, token, size and id."""

import logging
import re
import secrets
import traceback
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparring.core.text import one_line
from sparring.engine.answering import TOKEN_VARIABLE

LONGEST_MESSAGE, LONGEST_PARAM = 4000, 200
"""Characters of an error that a client gets back; they may quote a name of the client's or of a file."""


class LoadAdapterRequest(BaseModel):
    """Body of ``/v1/load_lora_adapter``, as in vLLM. ``load_inplace`` replaces the adapter of this name."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """Body of ``/v1/unload_lora_adapter``, as in vLLM."""

    lora_name: str = Field(min_length=1)


class ApiError(Exception):
    """A rejected request, with its HTTP status and the fields of OpenAI's error format."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    def response(self) -> JSONResponse:
        """Return the HTTP response in OpenAI's format."""
        return JSONResponse(self.body(), self.status, self.headers)

    def body(self) -> dict[str, Any]:
        """Return the body of the response, which is also the last event of a stream that fails."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        param = None if self.param is None else one_line(self.param)[:LONGEST_PARAM]
        message = one_line(self.message)[:LONGEST_MESSAGE]
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def model_not_found(name: str, served: list[str]) -> ApiError:
    """Return the error for a model that is not served."""
    return ApiError(
        404,
        f"The model `{name}` does not exist. This server has: {', '.join(served)}",
        param="model",
        code="model_not_found",
    )


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int, param: str) -> ApiError:
    """Return the error for a request that exceeds the context, in the words that clients search for."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {param}, {max_tokens} in the "
        f"completion). Please reduce the length of the {param} or completion.",
        param=param,
        code="context_length_exceeded",
    )


def prompt_too_long(limit: int, given: str, param: str) -> ApiError:
    """Return the error for a prompt that is too long for the context, whatever its tokens are."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {given}, which is more than "
        "fits. Please reduce the length.",
        param=param,
        code="context_length_exceeded",
    )


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
                await ApiError(500, problem).response()(scope, receive, send_some)

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
            await refusal.response()(scope, receive, send)
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
