"""A group of learners on two hosts apart from the command's, one of which is cut off or killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.faults import QUICK, RUN, Fault, strike
from hosts.network import Network
from hosts.nodes import Nodes, adapters_of, same, saved, sizes_for
from run_files import Weights

PLACES = [("engine", 1), ("learner", 2), ("learner", 3), ("collector", 3)]


@pytest.fixture(scope="module")
def nodes(playing: Path) -> Iterator[Nodes]:
    """Three hosts, which have the model, and room for one learner on each of two."""
    with Network(3) as network:
        for host in network.hosts.values():
            shutil.copytree(playing, host.home / "model")
        yield Nodes(network, sizes_for(PLACES), QUICK)


@pytest.fixture(scope="module")
def alone(nodes: Nodes) -> Weights:
    """The adapters of one process."""
    code, said = nodes.sparring("train", *RUN, "--name=alone").end()
    assert code == 0, said
    return adapters_of(nodes.runs / "alone")


@pytest.mark.parametrize(("kind", "seconds"), [("", 0), ("cut", 10), ("cut", 60), ("kill", 3)])
@pytest.mark.parametrize("host", [2, 3])
def test_learners_on_two_hosts_end_as_one_process_also_if_one_of_them_is_lost_for_a_time(
    nodes, alone, host, kind, seconds
):
    nodes.wait()
    name = f"learners-{kind}-{host}-{seconds}"
    command = nodes.train(name, *RUN, "--ray.learners=2", "--ray.patience=200")
    assert command.wait_until(lambda: saved(nodes.runs / name) > 1), command.end()
    if kind:
        strike(nodes, Fault(kind, "learner", seconds), host)
    code, said = command.end()
    print(f"{kind} host {host}, {seconds} s: {code}\n{said}")
    assert code == 0, said
    assert same(adapters_of(nodes.runs / name), alone)
