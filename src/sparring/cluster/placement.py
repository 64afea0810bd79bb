"""Placement: reserve cores and GPUs for the learners and engines of a run, and share the cores of a node."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from sparring.config import Config
from sparring.config.model import InferenceSettings
from sparring.config.run import RaySettings
from sparring.core import InputError
from sparring.run.hardware import available_cores

Kind = Literal["learners", "engine"]


@dataclass(frozen=True)
class Sharing:
    """The engines and learners of a run; ``overlap``: they compute at the same time, not in turns."""

    engines: int
    learners: int
    overlap: bool

    @classmethod
    def of(cls, config: Config) -> "Sharing":
        """Return how the actors of a run share cores."""
        overlap = config.collection.max_staleness > 0
        return cls(config.ray.engines, config.ray.learners, overlap)

    def cores(self, cores: int) -> int:
        """Return the share of each actor if all of them are on one node with this many cores."""
        busy = self.engines + self.learners if self.overlap else max(self.engines, self.learners)
        return max(1, cores // max(1, busy))


def group_name(run: str, kind: Kind, number: int = 0) -> str:
    """Return the name of a placement group by which :func:`sharing_on_node` knows its actors."""
    return f"{run}/{kind}/{number}"


def cores_here(sharing: Sharing) -> int:
    """Return the share of the actor that calls this; of all actors of the run, if they have no groups."""
    context, cores = ray.get_runtime_context(), node_cores()
    group = get_current_placement_group()
    if group is not None:
        own = group.id.hex()
        sharing = sharing_on_node(placement_group_table(), own, context.get_node_id(), sharing.overlap)
    return sharing.cores(cores)


def sharing_on_node(
    groups: Mapping[str, Mapping[str, Any]], own_group: str, node: str, overlap: bool
) -> Sharing:
    """Return the engines and learners on a node that are of the same run as a placement group.

    Args:
        groups: Ray's table of placement groups, by id.
        own_group: id of a group of the run.
        node: id of the node.
    """
    run = groups[own_group]["name"].split("/")[0]
    counts = {"learners": 0, "engine": 0}
    for group in groups.values():
        of_run, _, rest = group["name"].partition("/")
        if of_run == run:
            counts[rest.split("/")[0]] += list(group["bundles_to_node_id"].values()).count(node)
    return Sharing(counts["engine"], counts["learners"], overlap)


def node_cores() -> int:
    """Return the cores of this actor's node: those that this process may use, at most those known to Ray."""
    here = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    known = next((int(node["Resources"].get("CPU", 0)) for node in nodes if node["NodeID"] == here), 0)
    return min(available_cores(), known) if known else available_cores()


LOOK_SECONDS = 0.1
FIELDS = {
    "CPU": "ray.cpus_per_engine, ray.cpus_per_learner, ray.cpus_per_collector",
    "GPU": "ray.gpus_per_engine, ray.gpus_per_learner",
}


class Placed(Protocol):
    """What is spread over a cluster: a run's configuration, or a server."""

    @property
    def ray(self) -> RaySettings:
        """The numbers of actors, and what each requests."""

    @property
    def inference(self) -> InferenceSettings:
        """The engines."""


class Placement:
    """Placement groups: for all learners, all collectors and each engine. Ray moves them if a node dies.

    A run starts when its learners, its collectors and its least number of engines have their groups. Then
    those of the other engines are requested and stay so; a cluster that scales by itself grows for them.

    An engine with ``inference.tensor_parallel`` GPUs has a bundle for each of them, on one node. The actor is
    in the first bundle without a GPU of its own; the processes that vLLM starts take the GPUs.

    Collectors are spread over the nodes. Actors that request neither cores nor GPUs have no group, and Ray
    places them.

    Args:
        config: what is spread.
        say: called with a line if the run waits for a cluster that is too small now.

    Raises:
        InputError: the cluster does not grant what the run needs in time, or is this machine and does not
            have it.
    """

    def __init__(self, config: Placed, say: Callable[[str], None]) -> None:
        settings = config.ray
        shortage = shortage_of(config)
        if shortage is not None and settings.address is None:  # this machine does not grow
            raise shortage
        self._run = uuid.uuid4().hex
        self.learners = _group(_learner_bundles(settings), "PACK", group_name(self._run, "learners"))
        self.collectors = _group(_collector_bundles(config), "SPREAD", f"{self._run}/collectors")
        self.engines = [self._engine_group(config, number) for number in range(settings.least_engines)]
        if shortage is not None:
            say(f"{shortage.problem} now; waiting up to {settings.patience:g} s for more")
        if not self._granted_within(settings.patience):
            self.remove()
            raise shortage_of(config) or InputError(
                "ray",
                f"other work takes what the run requests of the cluster, for {settings.patience:g} s now",
                "Wait until it is free, or request less",
            )
        others = range(settings.least_engines, settings.engines)
        self.engines += [self._engine_group(config, number) for number in others]

    def learner(self) -> dict[str, Any]:
        """Return Ray's options for the first learner."""
        return _inside(self.learners, 0)

    def collector(self, number: int) -> dict[str, Any]:
        """Return Ray's options for a collector."""
        return _inside(self.collectors, number)

    def engine(self, number: int) -> dict[str, Any]:
        """Return Ray's options for an engine."""
        return _inside(self.engines[number], 0, with_children=True)

    def remove(self) -> None:
        """Release everything."""
        for group in (self.learners, self.collectors, *self.engines):
            if group is not None:
                remove_placement_group(group)

    def _engine_group(self, config: Placed, number: int) -> PlacementGroup | None:
        return _group(_engine_bundles(config), "STRICT_PACK", group_name(self._run, "engine", number))

    def _granted_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not all(map(_granted, (self.learners, self.collectors, *self.engines))):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True


def shortage_of(config: Placed) -> InputError | None:
    """Return what the cluster does not have of what a run needs to start; ``None`` if it has everything."""
    settings = config.ray
    bundles = [
        *_learner_bundles(settings),
        *_engine_bundles(config) * settings.least_engines,
        *_collector_bundles(config),
    ]
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for kind, fields in FIELDS.items():
        wanted = sum(bundle.get(kind, 0) for bundle in bundles)
        if wanted > there.get(kind, 0):
            if kind == "GPU" and config.inference.tensor_parallel > 1:
                fields += ", inference.tensor_parallel"
            return InputError(
                "ray",
                f"{requested(wanted, kind)} and the cluster has {there.get(kind, 0):g}",
                f"Lower {fields} or their numbers",
            )
    return None


def requested(amount: float, kind: str) -> str:
    """Return the beginning of a sentence: how many of a kind are requested."""
    return f"{_amount(amount, kind)} {'is' if amount == 1 else 'are'} requested"


def _amount(amount: float, kind: str) -> str:
    return f"{amount:g} {kind}{'' if amount == 1 else 's'}"


def waits_for(group: PlacementGroup | None) -> str | None:
    """Return what a group requests that no node has free, such as "2 CPUs"; ``None`` if it has its place."""
    if group is None or _granted(group):
        return None
    table = placement_group_table(group)
    placed: dict[int, str] = table["bundles_to_node_id"]
    for number, bundle in table["bundles"].items():
        if not placed.get(number):
            return " and ".join(_amount(amount, kind) for kind, amount in bundle.items())
    return None


def cores_for(settings: RaySettings) -> float:
    """Return the number of cores that all learners, engines and collectors request."""
    learners = settings.cpus_per_learner * settings.learners
    engines = settings.cpus_per_engine * settings.engines
    return learners + engines + settings.cpus_per_collector * settings.collectors


def beside_command() -> dict[str, Any]:
    """Return Ray's options for an actor on this node, which sees the run's directory.

    Where this node has no cores, Ray would place one elsewhere that may be.
    """
    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def _learner_bundles(settings: RaySettings) -> list[dict[str, float]]:
    return [_bundle(settings.cpus_per_learner, settings.gpus_per_learner)] * settings.learners


def _collector_bundles(config: Placed) -> list[dict[str, float]]:
    return [_bundle(config.ray.cpus_per_collector, 0)] * config.ray.collectors


def _engine_bundles(config: Placed) -> list[dict[str, float]]:
    settings, gpus = config.ray, config.inference.tensor_parallel
    first = _bundle(settings.cpus_per_engine, settings.gpus_per_engine if gpus == 1 else 1)
    return [first, *[_bundle(0, 1)] * (gpus - 1)]


def _group(bundles: list[dict[str, float]], strategy: str, name: str) -> PlacementGroup | None:
    return placement_group(bundles, strategy=strategy, name=name) if bundles and all(bundles) else None


def _granted(group: PlacementGroup | None) -> bool:
    return group is None or placement_group_table(group).get("state") == "CREATED"


def _inside(group: PlacementGroup | None, bundle: int, *, with_children: bool = False) -> dict[str, Any]:
    """Return Ray's options for an actor in a bundle of a group, and perhaps for those that it starts."""
    if group is None:
        return {}
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle, with_children)}


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
