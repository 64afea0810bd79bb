"""Placement: reserve cores and GPUs for the learners and engines of a run, all together or not at all."""

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from selfplay.config.ray import RaySettings
from selfplay.core import InputError


class Placement:
    """A placement group: a bundle for each learner, then one for each engine. Ray moves it if a node dies.

    If neither cores nor GPUs are requested, nothing is reserved, and Ray places the actors.

    Raises:
        InputError: the cluster does not have the requested resources, or does not grant them in time.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        learner = _bundle(settings.cpus_per_learner, settings.gpus_per_learner)
        engine = _bundle(settings.cpus_per_engine, settings.gpus_per_engine)
        bundles = [*[learner] * settings.learners, *[engine] * settings.engines]
        self.group: PlacementGroup | None = None
        if all(bundles):
            self._check(bundles)
            self.group = placement_group(bundles, strategy="PACK")
            if not self.group.wait(settings.patience):
                self.remove()
                raise InputError(
                    "ray",
                    f"the cluster did not grant {_words(bundles)} in {settings.patience:g} s",
                    "Wait until it is free, or request less",
                )

    def learner(self) -> dict[str, Any]:
        """Return Ray's options for the first learner."""
        return self._bundle_options(0)

    def engine(self, number: int) -> dict[str, Any]:
        """Return Ray's options for an engine."""
        return self._bundle_options(self.settings.learners + number)

    def remove(self) -> None:
        """Release everything."""
        if self.group is not None:
            remove_placement_group(self.group)

    def _bundle_options(self, index: int) -> dict[str, Any]:
        if self.group is None:
            return {}
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, index)}

    def _check(self, bundles: list[dict[str, float]]) -> None:
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        for kind in ("CPU", "GPU"):
            wanted = sum(bundle.get(kind, 0) for bundle in bundles)
            if wanted > there.get(kind, 0):
                raise InputError(
                    "ray",
                    f"{requested(wanted, kind)} and the cluster has {there.get(kind, 0):g}",
                    f"Lower ray.{kind.lower()}s_per_engine, ray.{kind.lower()}s_per_learner or their numbers",
                )


def requested(amount: float, kind: str) -> str:
    """Return the beginning of a sentence: how many of a kind are requested."""
    return f"{_counted(amount, kind)} {'is' if amount == 1 else 'are'} requested"


def cores_for(settings: RaySettings) -> float:
    """Return the number of cores that all learners and engines request."""
    return settings.cpus_per_learner * settings.learners + settings.cpus_per_engine * settings.engines


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def _words(bundles: list[dict[str, float]]) -> str:
    cpus, gpus = (sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("CPU", "GPU"))
    return f"{_counted(cpus, 'CPU')} and {_counted(gpus, 'GPU')}"


def _counted(amount: float, kind: str) -> str:
    return f"{amount:g} {kind}{'' if amount == 1 else 's'}"
