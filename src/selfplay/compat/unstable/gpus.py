"""The GPUs of a cluster."""

from typing import Any

import ray

from selfplay.cluster.placement import requested
from selfplay.core import InputError


def gpus_of_cluster() -> float:
    """Return the number of GPUs of all nodes."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0.0)


def check_gpus(options: dict[str, Any]) -> None:
    """Raise an InputError if an actor requests more GPUs than there are: Ray would wait for them forever."""
    wanted, there = options.get("num_gpus") or 0, gpus_of_cluster()
    if wanted > there:
        raise InputError(
            "num_gpus", f"{requested(wanted, 'GPU')} and the cluster has {there:g}", "Request fewer"
        )
