"""Connect to a Ray cluster, and express its errors in one line."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayTaskError

from selfplay.cluster.addresses import (
    keep_loopback_addresses,
    knock,
    make_token,
    no_cluster,
    why_not_joined,
)
from selfplay.cluster.placement import cores_for
from selfplay.config.ray import RaySettings
from selfplay.core import InputError, SelfplayError


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
        make_token()
    else:
        knock(settings.address)
        options |= {"address": settings.address}
    keep_loopback_addresses()
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many kinds, some of them plain Exceptions
        if settings.address is None:
            raise SelfplayError(f"Ray cannot start on this machine ({first_line(error)})") from error
        raise no_cluster(settings.address, why_not_joined(error)) from error
    # Regardless of log_to_driver, Ray prints pages to the terminal about actors that it restarts.
    ray._private.worker._worker_logs_enabled = False
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


def in_our_words(error: BaseException, who: str) -> SelfplayError:
    """Return the error of an actor: selfplay's own unchanged, Ray's in one line."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, SelfplayError | ActorDiedError):
        return in_our_words(error.cause, who)
    if isinstance(error, SelfplayError):
        return error
    if isinstance(error, ActorDiedError):
        name = re.search(r"^\s*name: (.+)$", str(error), re.MULTILINE)
        sentence, _, _ = _reason(error).partition(". ")
        return _from_constructor(str(error)) or SelfplayError(
            f"{name[1] if name else who} died and cannot come back ({sentence})"
        )
    if isinstance(error, RayTaskError):
        return SelfplayError(f"{who} failed: {first_line(error.cause)}")
    return SelfplayError(f"{who} is lost ({_reason(error)})")


def first_line(error: BaseException) -> str:
    """Return the first line that is not empty, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def _from_constructor(text: str) -> SelfplayError | None:
    """Return selfplay's own error from the trace of a failed constructor: Ray passes on only the text."""
    found = re.findall(
        r"^(?:selfplay\.[\w.]*\.)?(InputError|SelfplayError|\w*Error): (.+)$", text, re.MULTILINE
    )
    for kind, message in reversed(found):
        if kind == "InputError":
            field, _, rest = message.partition(": ")
            problem, _, fix = rest.partition(". ")
            return InputError(field, problem, fix)
        if kind not in ("ActorDiedError",):
            return SelfplayError(message)
    return None


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200].rstrip(".")
