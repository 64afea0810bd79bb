"""Placement: reserve cores and GPUs for the learners and engines of a run."""

import time
import uuid
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from selfplay.cluster.node_cores import group_name
from selfplay.config.ray import RaySettings
from selfplay.config.settings import Config
from selfplay.core import InputError

FIELDS = {
    "CPU": "ray.cpus_per_engine, ray.cpus_per_learner, ray.cpus_per_collector",
    "GPU": "ray.gpus_per_engine, ray.gpus_per_learner",
}


class Placement:
    """Placement groups: one for all learners and one for each engine. Ray moves them if a node dies.

    Actors that request neither cores nor GPUs have no group, and Ray places them. Collectors have no group
    either: each requests its cores where there are some.

    Args:
        config: the run's configuration.

    Raises:
        InputError: the cluster does not have the requested resources, or does not grant them in time.
    """

    def __init__(self, config: Config) -> None:
        settings = config.ray
        learner = _bundle(settings.cpus_per_learner, settings.gpus_per_learner)
        engine = _bundle(settings.cpus_per_engine, settings.gpus_per_engine)
        bundles = [*[learner] * settings.learners, *[engine] * settings.engines]
        collectors = settings.collectors if config.program is None else 0
        _check([*bundles, *[_bundle(settings.cpus_per_collector, 0)] * collectors])
        run = uuid.uuid4().hex
        self.learners = _group([learner] * settings.learners, group_name(run, "learners"))
        self.engines = [
            _group([engine], group_name(run, "engine", number)) for number in range(settings.engines)
        ]
        if not self._granted_within(settings.patience):
            self.remove()
            raise InputError(
                "ray",
                f"the cluster did not grant {_words(bundles)} in {settings.patience:g} s",
                "Wait until it is free, or request less",
            )

    def learner(self) -> dict[str, Any]:
        """Return Ray's options for the first learner."""
        return _inside(self.learners)

    def engine(self, number: int) -> dict[str, Any]:
        """Return Ray's options for an engine."""
        return _inside(self.engines[number])

    def remove(self) -> None:
        """Release everything."""
        for group in self._groups():
            remove_placement_group(group)

    def _groups(self) -> list[PlacementGroup]:
        return [group for group in (self.learners, *self.engines) if group is not None]

    def _granted_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(group.wait(max(0.0, deadline - time.monotonic())) for group in self._groups())


def requested(amount: float, kind: str) -> str:
    """Return the beginning of a sentence: how many of a kind are requested."""
    return f"{_counted(amount, kind)} {'is' if amount == 1 else 'are'} requested"


def cores_for(settings: RaySettings) -> float:
    """Return the number of cores that all learners, engines and collectors request."""
    learners = settings.cpus_per_learner * settings.learners
    engines = settings.cpus_per_engine * settings.engines
    return learners + engines + settings.cpus_per_collector * settings.collectors


def _check(bundles: list[dict[str, float]]) -> None:
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for kind, fields in FIELDS.items():
        wanted = sum(bundle.get(kind, 0) for bundle in bundles)
        if wanted > there.get(kind, 0):
            raise InputError(
                "ray",
                f"{requested(wanted, kind)} and the cluster has {there.get(kind, 0):g}",
                f"Lower {fields} or their numbers",
            )


def _group(bundles: list[dict[str, float]], name: str) -> PlacementGroup | None:
    return placement_group(bundles, strategy="PACK", name=name) if all(bundles) else None


def _inside(group: PlacementGroup | None) -> dict[str, Any]:
    """Return Ray's options for an actor in the first bundle of a group."""
    if group is None:
        return {}
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def _words(bundles: list[dict[str, float]]) -> str:
    cpus, gpus = (sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("CPU", "GPU"))
    return f"{_counted(cpus, 'CPU')} and {_counted(gpus, 'GPU')}"


def _counted(amount: float, kind: str) -> str:
    return f"{amount:g} {kind}{'' if amount == 1 else 's'}"
