"""The port at which a server listens, its connections, and the token that its clients need."""

import asyncio
import os
import secrets
import socket
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparring.core import InputError, SparringError
from sparring.core.text import is_loopback
from sparring.engine.answering import TOKEN_VARIABLE
from sparring.engine.api_connection import is_sendable

SECONDS = 10.0
"""How long the head of a request may take, from the connection on or from its first byte."""
BYTES = 10_000
"""How many bytes of its body must arrive in each such time."""


class RequestDeadlines(H11Protocol):
    """uvicorn's protocol, which itself waits forever for the rest of a request."""

    _timer: asyncio.TimerHandle | None = None
    _state: Any = None
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take data, and wait for the rest of the request if there is one."""
        self._received += len(data)
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer anew when the request has come to its head or to its body."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._stop()
        self._state = state
        if state in (h11.IDLE, h11.SEND_BODY):
            self._wait()

    def _wait(self) -> None:
        self._received = 0
        self._timer = self.loop.call_later(SECONDS, self._expired)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expired(self) -> None:
        if self._state is h11.SEND_BODY and (self._received >= BYTES or self.flow.read_paused):
            self._wait()
        else:
            self.transport.close()


KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5


def chosen_token() -> str:
    """Return the token that the user has set, or an empty one."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not is_sendable(token):
        raise InputError(
            TOKEN_VARIABLE, "holds a character that a token cannot have", "Use letters and digits."
        )
    return token


def new_token(host: str) -> str:
    """Generate a token for this run of the server, if only this machine can reach the server."""
    if not is_loopback(host):
        problem = f"{host} lets other machines in, and you have set no token"
        raise InputError("--host", problem, f"Set {TOKEN_VARIABLE} to a secret.")
    return secrets.token_urlsafe(24)


def listen(host: str, port: int) -> socket.socket:
    """Open the port. Clients that connect while the model is loaded wait."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
    except UnicodeError as error:
        raise InputError(
            "--host", f"{host!r} is not a host name", "Give a host name or an address."
        ) from error
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        raise InputError(
            "--port", f"the server cannot listen at {host}:{port} ({reason})", "Choose another port or host."
        ) from error
    # Its connections inherit this. Without it, the body of a reply waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(host: str, listener: socket.socket) -> str:
    """Return the base address of the API."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/v1"


def server_of(app: FastAPI) -> uvicorn.Server:
    """Return a server for an application, which is not started."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        http=RequestDeadlines,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


async def serve_until_ended(server: uvicorn.Server, listener: socket.socket) -> None:
    """Answer requests until the server is told to end.

    Raises:
        SparringError: it could not start; uvicorn has printed why.
    """
    try:
        await server.serve(sockets=[listener])
        started = server.started
    except SystemExit:  # newer versions of uvicorn end the program
        started = False
    if not started:
        raise SparringError("the server could not start; the reason is above")
