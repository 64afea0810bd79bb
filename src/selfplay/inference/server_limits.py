"""Middleware that rejects clients without the token and bodies that are too large."""

import secrets

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfplay.inference.openai_client import TOKEN_VARIABLE
from selfplay.inference.server_schema import ApiError

OPEN_PATHS = ("/health", "/ping")
MAX_BODY_BYTES = 4 * 2**20
"""Maximum size of a request's body: several times the text of the longest contexts of current models."""


class TokenCheck:
    """Middleware that rejects requests without the bearer token before it reads anything else of them."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._knows_token(scope):
            refusal = ApiError(
                401,
                f"The bearer token is missing or wrong. Send the server's {TOKEN_VARIABLE}",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _knows_token(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(token, self._expected)


class BodyLimit:
    """Middleware that rejects bodies of more than ``MAX_BODY_BYTES``, with or without a Content-Length."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            await ApiError(413, _TOO_LARGE).response()(scope, receive, send)
            return
        received = 0

        async def receive_some() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise HTTPException(413, _TOO_LARGE)
            return message

        await self.app(scope, receive_some, send)


_TOO_LARGE = f"the body has more than {MAX_BODY_BYTES:,} bytes. Send a shorter one"
