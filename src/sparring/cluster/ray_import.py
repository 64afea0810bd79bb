"""Import Ray with settings that it reads from the environment only then. Nothing here is about a cluster."""

import importlib
import os

from sparring.core import InputError
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
        importlib.import_module("ray")
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
