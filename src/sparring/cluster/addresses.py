"""Check addresses of clusters before Ray uses them: Ray itself would wait for minutes and print messages."""

import contextlib
import os
import secrets
import socket
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

from sparring.core import InputError
from sparring.core.errors import first_line

KNOCK_SECONDS = 5.0
"""Maximum time that a cluster may take to accept a connection, and to send its first bytes."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 client: the preface and empty settings (RFC 9113, section 3.4)."""
HTTP2_SETTINGS = 4


def knock(address: str) -> None:
    """Check that something at ``HOST:PORT`` or ``ray://HOST:PORT`` speaks gRPC; ``auto`` is not checked.

    Raises:
        InputError: the address is invalid, nothing answers there, or the answer is not gRPC, as Ray's is.
    """
    if address == "auto":
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname is None or parts.port is None:
            raise ValueError(address)
        with socket.create_connection((parts.hostname, parts.port), timeout=KNOCK_SECONDS) as connection:
            if not _speaks_grpc(connection):
                raise no_cluster(address, "the server there is not Ray")
    except ValueError as error:
        raise InputError("--address", f"{address!r} is not an address", "Give HOST:PORT or auto.") from error
    except OSError as error:
        raise no_cluster(address, error.strerror or str(error)) from error


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side greets like an HTTP/2 server; behind TLS this is not checked."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True
    connection.sendall(HTTP2_GREETING)
    try:
        first = connection.recv(9, socket.MSG_WAITALL)  # the head of a frame, its type at 3
    except TimeoutError:
        return False
    return len(first) == 9 and first[3] == HTTP2_SETTINGS


def make_token() -> None:
    """Create the token of this user's clusters if they need one and there is none.

    Call it before a cluster is started.

    Ray would create it too, but readable by every user of the machine.

    Raises:
        InputError: the token cannot be written.
    """
    given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    required = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
    path = Path.home() / ".ray" / "auth_token"
    if path.exists() or given or not required:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:  # for its owner only
            file.write(secrets.token_hex(32))
            file.flush()
            with contextlib.suppress(FileExistsError):  # another run, which began at the same time, was first
                os.link(file.name, path)
    except OSError as error:
        problem = f"the token {path} cannot be written ({error.strerror})"
        raise InputError("ray", problem, "Make it writable, or set RAY_AUTH_TOKEN_PATH.") from error


def why_not_joined(error: Exception) -> str:
    """Return in one line why Ray did not let this process join a cluster that :func:`knock` has found.

    Ray raises the same ``ConnectionError`` for a wrong token as for any other reason.
    """
    if isinstance(error, ConnectionError):
        return "Ray cannot connect; if it requires a token, set RAY_AUTH_MODE=token, see Ray's documentation"
    return first_line(error)


def no_cluster(address: str, reason: str) -> InputError:
    """Return the error for a cluster that cannot be joined."""
    return InputError(
        "--address",
        f"the cluster at {address} cannot be joined ({reason})",
        "See: ray status --address ADDRESS",
    )
