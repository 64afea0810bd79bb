"""Addresses of clusters: whether anybody is there. Ray itself would wait for minutes, and write of it."""

import os
import socket
from urllib.parse import urlsplit

from selfplay.core import InputError

KNOCK_SECONDS = 5.0
"""How long a cluster may take to take a connection, and to say its first word."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What an HTTP/2 client says first: the preface and empty settings (RFC 9113, section 3.4)."""
HTTP2_SETTINGS = 4


def knock(address: str) -> None:
    """See whether Ray may be at ``HOST:PORT`` or ``ray://HOST:PORT``; nobody looks where ``auto`` leads.

    Raises:
        InputError: nobody answers, or not in gRPC, as Ray would; or it is no address.
    """
    if address == "auto":
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname is None or parts.port is None:
            raise ValueError(address)
        with socket.create_connection((parts.hostname, parts.port), timeout=KNOCK_SECONDS) as connection:
            if not _speaks_grpc(connection):
                raise no_cluster(address, "what answers there is not Ray")
    except ValueError as error:
        raise InputError("--address", f"{address!r} is no address", "Give HOST:PORT or auto.") from error
    except OSError as error:
        raise no_cluster(address, error.strerror or str(error)) from error


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side greets as an HTTP/2 server does; behind TLS nobody looks."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True
    connection.sendall(HTTP2_GREETING)
    try:
        first = connection.recv(9, socket.MSG_WAITALL)  # the head of a frame, its type at 3
    except TimeoutError:
        return False
    return len(first) == 9 and first[3] == HTTP2_SETTINGS


def why_not_joined(error: BaseException) -> str:
    """Why Ray did not let us in, in one line."""
    told = f"{error!r} {error.__cause__!r}"
    if "AuthenticationError" in told or "Unauthenticated" in told:
        return "it asks for a token: set RAY_AUTH_MODE=token, see Ray's documentation"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def no_cluster(address: str, reason: str) -> InputError:
    """What to say of a cluster that cannot be joined."""
    return InputError(
        "--address",
        f"the cluster at {address} cannot be joined ({reason})",
        "See: ray status --address ADDRESS",
    )
