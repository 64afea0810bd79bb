"""Connect to a Ray cluster."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from sparring.cluster.addresses import knock, make_token, no_cluster, why_not_joined
from sparring.cluster.placement import cores_for
from sparring.cluster.ray_import import check_loopback
from sparring.config.run import RaySettings
from sparring.core import SparringError
from sparring.core.errors import first_line


@contextmanager
def connected(settings: RaySettings, namespace: str) -> Iterator[None]:
    """Join the cluster at ``settings.address``, or start one on this machine, for as long as the body runs.

    A cluster that is started here accepts connections from this machine only, and requires the token in
    ``~/.ray/auth_token`` unless ``RAY_AUTH_MODE=disabled`` is set in the environment.

    Raises:
        InputError: there is no cluster at the address.
    """
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
    try:
        yield
    finally:
        ray.shutdown()


def head_address(settings: RaySettings) -> str | None:
    """Return the address of the connected cluster's head; ``None`` if only a proxy is known."""
    if settings.address is not None and settings.address.startswith("ray://"):
        return None
    address: str = ray.get_runtime_context().gcs_address
    return address
