"""Runs on three hosts that share nothing, one of which is cut off, killed or restarted."""

import shutil
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import pytest

from hosts.faults import CUTS, PROCESSES, QUICK, RUN, Fault, strike
from hosts.network import Network
from hosts.nodes import Nodes, adapters_of, same, saved, sizes_for
from ray_accounts import problems_of
from run_files import Weights

PLACES = {"learner": 1, "engine": 2, "collector": 3}
VICTIMS = {"command": 1} | PLACES
LENGTHS = ((3, 200), (10, 200), (60, 200), (60, 40))
"""Seconds of a fault, and the run's patience: with the last it ends."""
FAULTS = [
    *(
        Fault(kind, victim, *lengths)
        for lengths, kind, victim in product(LENGTHS, (*CUTS, "kill"), ("command", "engine", "collector"))
    ),
    *(
        Fault(kind, victim, 60)
        for kind, victim in product(("loss", "slow"), ("command", "engine", "collector"))
    ),
    *(Fault("cut", victim, 600, patience) for victim, patience in (("engine", 900), ("collector", 200))),
    *(Fault("kill process", victim) for victim in PROCESSES),
    *(Fault("kill node", victim) for victim in ("engine", "collector")),
]
"""Every second one happens to a run in lockstep, the others where playing and learning overlap. So every
kind and every victim has both.
"""


@pytest.fixture(scope="module")
def nodes(playing: Path) -> Iterator[Nodes]:
    """Three hosts, which have the model."""
    with Network(3) as network:
        for host in network.hosts.values():
            shutil.copytree(playing, host.home / "model")
        yield Nodes(network, sizes_for(PLACES.items()), QUICK)


@pytest.fixture(scope="module")
def undisturbed(nodes: Nodes) -> Weights:
    """The adapters of a run that nothing disturbs."""
    code, said = nodes.train("undisturbed", *RUN).end()
    assert code == 0, said
    return adapters_of(nodes.runs / "undisturbed")


@pytest.mark.parametrize(("fault", "staleness"), list(zip(FAULTS, cycle((0, 1)), strict=False)), ids=str)
def test_a_run_survives_a_fault_of_a_host_or_ends_in_one_line_and_is_resumed(
    nodes, undisturbed, fault, staleness, tmp_path
):
    nodes.wait()
    name = "-".join(
        [*fault.kind.split(), fault.victim, str(fault.seconds), str(fault.patience), str(staleness)]
    )
    command = nodes.train(
        name, *RUN, f"--ray.patience={fault.patience}", f"--collection.max_staleness={staleness}"
    )
    run = nodes.runs / name
    assert command.wait_until(lambda: saved(run) > 1), command.end()
    strike(nodes, fault, VICTIMS[fault.victim])
    code, said = command.end()
    print(f"{fault}: {code}\n{said}")
    command_is_killed = fault.kind.startswith("kill") and fault.victim == "command"
    assert (code != 0) == (command_is_killed or fault.seconds > fault.patience), said
    if code != 0:
        assert command_is_killed or (code == 1 and said.splitlines()[-1].startswith("error: ")), said
        assert "Traceback" not in said
        nodes.wait()
        code, said = nodes.sparring("train", "--resume", str(Path("runs", name))).end()
    assert code == 0, said
    shutil.copytree(run, tmp_path / name)
    assert problems_of(tmp_path / name) == []
    if staleness == 0:
        assert same(adapters_of(tmp_path / name), undisturbed)
