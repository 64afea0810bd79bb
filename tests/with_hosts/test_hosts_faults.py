"""Runs on three hosts that share nothing, one of which is cut off, killed or restarted."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from hosts.network import Network
from hosts.nodes import Nodes, adapters_of, cores_for, same, saved
from ray_accounts import problems_of
from run_files import Weights

PLACES = {"learner": 1, "engine": 2, "collector": 3}
VICTIMS = {"command": 1} | PLACES
LENGTHS = ((3, 200), (10, 200), (60, 200), (60, 40))
"""Seconds of a fault, and the run's patience: with the last it ends."""
QUICK = {"period_ms": "1000", "timeout_ms": "3000", "failure_threshold": "4"}
"""Ray's health checks find a node dead after 16 s that does not answer; by default, after 65 s."""
RUN = [
    "quickstart",
    *("--model.name=/root/model", "--model.dtype=float32", "--model.threads=1", "--lora.rank=2"),
    *("--inference.max_tokens=6", "--learning.max_generation_len=6", "--learning.steps=20"),
    *("--collection.games_per_step=32", "--evaluation.every=0", "--evaluation.nash_conv=false"),
    "--evaluation.games=4",
]


@dataclass(frozen=True)
class Fault:
    """What happens to the host of whom, for how many seconds, in a run with which patience."""

    kind: str
    victim: str
    seconds: int = 0
    patience: int = 200

    def __str__(self) -> str:
        return f"{self.kind} {self.victim} {self.seconds} s, patience {self.patience} s"


BOTH = ("in", "out")
CHANGES: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "cut": (BOTH, {"cut": True}, {"cut": False}),
    "cut in": (("in",), {"cut": True}, {"cut": False}),
    "cut out": (("out",), {"cut": True}, {"cut": False}),
    "loss": (BOTH, {"loss": 0.3}, {"loss": 0.0}),
    "slow": (BOTH, {"rate": 1e6}, {"rate": 0.0}),
}
"""Changes of the network, by kind of fault: which ways, and their settings during the fault and after it."""
CUTS = ("cut", "cut in", "cut out")
PROCESSES = {
    "engine": "^ray::EngineActor",
    "collector": "^ray::CollectorActor",
    "learner": "^ray::Hosted",
    "command": "sparring train",
}
FAULTS = [
    *(
        Fault(kind, victim, *lengths)
        for lengths, kind, victim in product(LENGTHS, (*CUTS, "kill"), ("command", "engine", "collector"))
    ),
    *(
        Fault(kind, victim, 60)
        for kind, victim in product(("loss", "slow"), ("command", "engine", "collector"))
    ),
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
            shutil.copytree(playing, host.disk / "root" / "model")
        yield Nodes(
            network, cores_for(PLACES), {f"RAY_health_check_{name}": value for name, value in QUICK.items()}
        )


@pytest.fixture(scope="module")
def undisturbed(nodes: Nodes) -> Weights:
    """The adapters of a run that nothing disturbs."""
    code, said = nodes.train("undisturbed", *RUN).end()
    assert code == 0, said
    return adapters_of(nodes.runs / "undisturbed")


def strike(nodes: Nodes, fault: Fault) -> None:
    """Let a fault happen, and end it."""
    number, network = VICTIMS[fault.victim], nodes.network
    if fault.kind in ("kill process", "kill node"):
        name = PROCESSES[fault.victim] if fault.kind == "kill process" else "raylet/raylet"
        network[number].run("pkill", "-KILL", "--full", name)
    elif fault.kind == "kill":
        network.kill(number)
        time.sleep(fault.seconds)
        network.start(number)
        nodes.start(number)
    else:
        ways, bad, well = CHANGES[fault.kind]
        network.change(number, ways, **bad)
        time.sleep(fault.seconds)
        network.change(number, ways, **well)


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
    strike(nodes, fault)
    code, said = command.end()
    print(f"{fault}: {code}\n{said}")
    if code != 0:
        assert (fault.kind.startswith("kill") and fault.victim == "command") or (
            code == 1 and said.splitlines()[-1].startswith("error: ")
        ), said
        assert "Traceback" not in said
        nodes.wait()
        code, said = nodes.sparring("train", "--resume", str(Path("runs", name))).end()
    assert code == 0, said
    shutil.copytree(run, tmp_path / name)
    assert problems_of(tmp_path / name) == []
    if staleness == 0:
        assert same(adapters_of(tmp_path / name), undisturbed)
