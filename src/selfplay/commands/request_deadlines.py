"""The server's connections: those whose request does not arrive are closed."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
"""How long the head of a request may take, from the connection on or from its first byte."""
BYTES = 10_000
"""How many bytes of its body must arrive in each such time."""


class RequestDeadlines(H11Protocol):
    """uvicorn's protocol, which itself waits forever for the rest of a request; see the module.

    What it does between requests and while a request is answered is not changed.
    """

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
