"""Where a run's engines and learners are, and what they have there."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from job_commands import wait_until
from sparring.cluster.actor_classes import CommandFilesActor, restarting
from sparring.cluster.adapters import AdapterCache
from sparring.cluster.calls import RemoteLogger
from sparring.cluster.health import Health
from sparring.cluster.placement import (
    Placement,
    Sharing,
    beside_command,
    cores_here,
    group_name,
    sharing_on_node,
)
from sparring.config import Config, load_config
from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_FILE


def table(run: str, learners: list[str], engines: list[str]) -> dict[str, dict[str, Any]]:
    """Return Ray's table of a run's placement groups, given the node of each learner and engine."""

    def group(name: str, nodes: list[str]) -> dict[str, Any]:
        return {"name": name, "bundles_to_node_id": dict(enumerate(nodes))}

    groups = {f"{run}-learners": group(group_name(run, "learners"), learners)}
    for number, node in enumerate(engines):
        groups[f"{run}-engine-{number}"] = group(group_name(run, "engine", number), [node])
    return groups


def cores_of_an_engine(groups: dict[str, Any], run: str, node: str, cores: int, overlap: bool = True) -> int:
    return sharing_on_node(groups, f"{run}-learners", node, overlap).cores(cores)


def test_each_engine_on_a_node_of_its_own_has_all_of_that_nodes_cores():
    nodes = [f"node-{number}" for number in range(64)]
    groups = table("run", ["head"], nodes)
    assert {cores_of_an_engine(groups, "run", node, 48) for node in nodes} == {48}


@pytest.mark.parametrize(("overlap", "share"), [(True, 8), (False, 12)])
def test_actors_of_a_run_on_one_node_share_its_cores(overlap, share):
    groups = table("run", ["here", "there"], ["here", "there", "here"])
    assert cores_of_an_engine(groups, "run", "here", 24, overlap) == share


def test_actors_of_other_runs_are_not_counted():
    groups = table("run", ["here"], ["here"]) | table("other", ["here"], ["here"] * 6)
    assert cores_of_an_engine(groups, "run", "here", 24) == 12


def test_an_actor_has_one_core_where_there_are_more_actors_than_cores():
    assert cores_of_an_engine(table("run", ["here"], ["here"] * 6), "run", "here", 4) == 1


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A cluster whose head has no CPU, and two nodes with three and one."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for cpus in (3, 1):
        cluster.add_node(num_cpus=cpus)
    ray.init(address=cluster.address, namespace="placement", log_to_driver=False, logging_level=40)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def configured(more: dict[str, Any] | None = None, **settings: Any) -> Config:
    given = {f"ray.{name}": value for name, value in settings.items()} | (more or {})
    return load_config("quickstart", {"run.runtime": "ray", **given})


def on_one_core(options: dict[str, Any]) -> Any:
    """Start an actor that does nothing."""
    return restarting(RemoteLogger, num_cpus=1, **options).remote(None)


def neighbours(actor: Any) -> tuple[str, int, int]:
    """Return the node of an actor, and the numbers of the run's engines and learners on it."""

    def look(self: Any) -> tuple[str, int, int]:  # a closure, because the actor cannot import this module
        node = ray.get_runtime_context().get_node_id()
        own = ray.util.get_current_placement_group().id.hex()
        sharing = sharing_on_node(placement_group_table(), own, node, True)
        return node, sharing.engines, sharing.learners

    return ray.get(actor.__ray_call__.remote(look))


@pytest.mark.slow  # the tables above are such as Ray gives
def test_every_engine_counts_the_actors_of_its_run_on_its_own_node(nodes):
    placement = Placement(configured(engines=3, cpus_per_collector=0), pytest.fail)
    engines = [on_one_core(placement.engine(number)) for number in range(3)]
    learner = on_one_core(placement.learner())
    try:
        answers = [neighbours(one) for one in [*engines, learner]]
        there = [answer[0] for answer in answers]
        for node, engines_there, learners_there in answers:
            assert engines_there == there[:3].count(node)
            assert learners_there == there[3:].count(node)
        assert sorted(there.count(node) for node in set(there)) == [1, 3]
        sharing = Sharing(3, 1, overlap=True)
        assert ray.get(engines[0].__ray_call__.remote(lambda self: cores_here(sharing))) == 1
    finally:
        for actor in [*engines, learner]:
            ray.kill(actor)
        placement.remove()


def test_what_the_cluster_does_not_have_is_waited_for_and_then_an_error_in_one_line(nodes):
    said: list[str] = []
    with pytest.raises(InputError) as caught:
        Placement(configured(address=nodes.address, engines=2, collectors=2, patience=1.0), said.append)
    assert said == ["5 CPUs are requested and the cluster has 4 now; waiting up to 1 s for more"]
    assert str(caught.value).startswith("ray: 5 CPUs are requested and the cluster has 4. Lower ")
    assert "ray.cpus_per_collector" in str(caught.value)


@pytest.mark.slow  # test_cluster_failover takes engines in by default
def test_engines_beyond_the_least_number_are_placed_when_the_cluster_grows(nodes):
    # Ray may never look again at groups that are made while it still counts what an earlier test used.
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
    settings = {"engines": 4, "min_engines": 2, "cpus_per_collector": 0}
    placement = Placement(configured(address=nodes.address, **settings), pytest.fail)
    try:
        engines = [on_one_core(placement.engine(number)) for number in range(4)]
        ready = [one.__ray_ready__.remote() for one in engines]
        started, waiting = ray.wait(ready, num_returns=3, timeout=60.0)
        assert len(started) == 3
        assert ray.wait(waiting, timeout=0.5)[0] == []
        nodes.add_node(num_cpus=1)
        assert len(ray.wait(waiting, timeout=60.0)[0]) == 1
    finally:
        for actor in engines:
            ray.kill(actor)
        placement.remove()


def test_an_engine_on_two_gpus_has_a_group_of_its_own_on_one_node(nodes):
    node = nodes.add_node(num_cpus=2, num_gpus=3)
    settings = {"engines": 2, "min_engines": 1, "cpus_per_collector": 0, "gpus_per_engine": 0}
    vllm = {"inference.engine": "vllm", "inference.tensor_parallel": 2}
    try:
        with pytest.raises(InputError, match="4 GPUs are requested and the cluster has 3"):
            Placement(configured(**(settings | {"min_engines": 2}), more=vllm), pytest.fail)
        placement = Placement(configured(**settings, more=vllm), pytest.fail)
        groups = placement_group_table()
        engines = [groups[group.id.hex()] for group in placement.engines]
        bundles = [{"CPU": 1.0, "GPU": 1.0}, {"GPU": 1.0}]
        assert [list(engine["bundles"].values()) for engine in engines] == [bundles] * 2
        assert sorted(engine["state"] for engine in engines) == ["CREATED", "PENDING"]
        (there,) = [engine for engine in engines if engine["state"] == "CREATED"]
        assert set(there["bundles_to_node_id"].values()) == {node.node_id}
        placement.remove()
    finally:
        nodes.remove_node(node)


def test_collectors_are_spread_over_the_nodes_with_free_cores(nodes):
    placement = Placement(configured(collectors=2), pytest.fail)
    actors = [on_one_core(placement.collector(number)) for number in range(2)]
    node = lambda self: ray.get_runtime_context().get_node_id()  # noqa: E731 - Ray pickles it by value
    assert len(set(ray.get([one.__ray_call__.remote(node) for one in actors]))) == 2
    for one in actors:
        ray.kill(one)
    placement.remove()


def test_an_actor_that_has_no_place_any_more_is_lost_with_what_it_waits_for(nodes):
    node = nodes.add_node(num_cpus=9)  # it may also have the learner and the engine
    placement = Placement(configured(cpus_per_collector=5), pytest.fail)
    collector = restarting(CommandFilesActor, **placement.collector(0)).remote("")
    groups = {"Learner": placement.learners, "Collector-0": placement.collectors}
    try:
        ray.get(collector.check.remote())
        nodes.remove_node(node)
        watched = Health({"Collector-0": collector}, patience=2.0, groups=groups)
        with pytest.raises(SparringError) as caught:
            asyncio.run(asyncio.wait_for(watched.watch(), 60.0))
        why = "it requests 5 CPUs, and no node has as much free"
        assert str(caught.value) == f"Collector-0 has not come back for 2 s: {why}"
    finally:
        ray.kill(collector)
        placement.remove()


def test_engines_beyond_the_least_number_do_not_take_the_cores_of_the_collectors(nodes):
    settings = {"engines": 9, "min_engines": 1, "collectors": 2}
    placement = Placement(configured(address=nodes.address, **settings), pytest.fail)
    try:
        state = lambda group: placement_group_table(group)["state"]  # noqa: E731
        assert state(placement.collectors) == "CREATED"
        assert [state(group) for group in placement.engines].count("PENDING") >= 4
    finally:
        placement.remove()


@pytest.mark.slow  # test_cluster_adapter_files does it without Ray
def test_an_adapter_travels_through_the_object_store(nodes, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ADAPTER_FILE).write_bytes(b"weights" * 1_000_000)
    files = restarting(CommandFilesActor, **beside_command()).remote("")
    cache = AdapterCache(files, tmp_path / "cache")
    place = asyncio.run(cache.fetch(str(tmp_path / "run")))
    assert (place / ADAPTER_FILE).read_bytes() == b"weights" * 1_000_000
    with pytest.raises(SparringError, match=r"^there is no adapter at /nowhere") as caught:
        asyncio.run(cache.fetch("/nowhere"))
    assert "\n" not in str(caught.value)
    ray.kill(files)
