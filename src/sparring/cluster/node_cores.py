"""The cores that an engine or a learner computes on: its share of those of its own node.

A cluster's nodes differ from the machine of the command, and from each other. So each actor divides the cores
of the node that it is on by the number of the run's engines and learners there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import get_current_placement_group, placement_group_table

from sparring.config import Config
from sparring.run.threads import available_cores

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
        overlap: see :class:`Sharing`.
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
