"""Import Ray, check a cluster's address and join the cluster.

Ray reads some settings from the environment when it is imported, so it is imported in functions. Addresses
are checked first: Ray itself would wait for minutes and print messages.
"""

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

from sparring.config.run import RaySettings
from sparring.core import InputError, SparringError
from sparring.core.errors import first_line, imported
from sparring.core.interrupts import interrupt_by_sigterm
from sparring.core.text import is_loopback

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this, Ray uses 127.0.0.1 as given, as on macOS and Windows. Otherwise it replaces it by this machine's
network address, so that a cluster that is started here would be open to other machines, and one that listens
only to this machine could not be joined."""
SILENT = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""With this, Ray does not print pages to the terminal about actors that it restarts, as it does regardless of
``log_to_driver``."""


def import_ray(*, silent: bool) -> None:
    """Import Ray so that it uses loopback addresses; call it before anything else imports Ray.

    Args:
        silent: whether Ray prints nothing about actors.
    """
    settings = LOOPBACK | (SILENT if silent else {})
    given = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        imported("ray", "ray", "ray")
    finally:
        for name, value in given.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def check_loopback() -> None:
    """Check that a cluster that is started now listens only to this machine.

    Raises:
        InputError: the program imported Ray by itself before.
    """
    import ray

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if not is_loopback(address):
        raise InputError(
            "ray",
            "was imported before sparring, so a cluster that is started now would be open to other machines",
            "Connect to a cluster with ray.init",
        )


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


@contextmanager
def connected(settings: RaySettings, namespace: str) -> Iterator[None]:
    """Join the cluster at ``settings.address``, or start one on this machine, for as long as the body runs.

    A cluster that is started here accepts connections from this machine only, and requires the token in
    ``~/.ray/auth_token`` unless ``RAY_AUTH_MODE=disabled`` is set in the environment.

    Raises:
        InputError: there is no cluster at the address.
    """
    import ray

    from sparring.cluster.placement import cores_for

    options: dict[str, Any] = {
        "namespace": namespace,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    if settings.address is None:
        options |= {"num_cpus": max(os.cpu_count() or 1, int(cores_for(settings) + 0.99))}
        # "local": without it Ray would join whatever cluster runs on this machine.
        options |= {"address": "local", "include_dashboard": False}
        check_loopback()
        make_token()
    else:
        knock(settings.address)
        options |= {"address": settings.address}
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many kinds, some of them plain Exceptions
        if settings.address is None:
            raise SparringError(f"Ray cannot start on this machine ({first_line(error)})") from error
        raise no_cluster(settings.address, why_not_joined(error)) from error
    interrupt_by_sigterm()  # Ray has set a handler that ends the program with a traceback
    try:
        yield
    finally:
        ray.shutdown()


def head_address(settings: RaySettings) -> str | None:
    """Return the address of the connected cluster's head; ``None`` if only a proxy is known."""
    if settings.address is not None and settings.address.startswith("ray://"):
        return None
    import ray

    address: str = ray.get_runtime_context().gcs_address
    return address
