"""Runs on three hosts that share nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from game_runs import SMALL
from hosts.network import Network
from hosts.nodes import Nodes, adapters_of, cores_for

APART = {"learner": 1, "engine": 2, "collector": 3}
RUN = [f"--{name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def nodes(playing: Path) -> Iterator[Nodes]:
    with Network(3) as network:
        for host in network.hosts.values():
            shutil.copytree(playing, host.disk / "root" / "model")
        yield Nodes(network, cores_for(APART))


def test_a_game_on_three_hosts_ends_with_the_adapter_of_one_process(nodes):
    command = nodes.train("apart", "quickstart", "--model.name=/root/model", *RUN)
    code, said = command.end()
    assert code == 0, said
    alone = nodes.network[1].run(
        "sparring", "train", "quickstart", "--name=alone", "--model.name=/root/model", *RUN
    )
    assert adapters_of(nodes.runs / "apart") == adapters_of(nodes.runs / "alone"), alone
