"""Addresses of clusters: whether anybody is there. Ray itself would wait for minutes, and write of it."""

import socket
from urllib.parse import urlsplit

from selfplay.core import InputError

KNOCK_SECONDS = 5.0
"""How long a cluster may take to take a connection."""


def knock(address: str) -> None:
    """See whether anybody answers at ``HOST:PORT`` or ``ray://HOST:PORT``; nobody looks where ``auto`` leads.

    Raises:
        InputError: nobody does, or it is no address.
    """
    if address == "auto":
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname is None or parts.port is None:
            raise ValueError(address)
        socket.create_connection((parts.hostname, parts.port), timeout=KNOCK_SECONDS).close()
    except ValueError as error:
        raise InputError("--address", f"{address!r} is no address", "Give HOST:PORT or auto.") from error
    except OSError as error:
        raise no_cluster(address, error.strerror or str(error)) from error


def no_cluster(address: str, reason: str) -> InputError:
    """What to say of a cluster that cannot be joined."""
    return InputError(
        "--address",
        f"the cluster at {address} cannot be joined ({reason})",
        "See: ray status --address ADDRESS",
    )
