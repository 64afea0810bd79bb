"""Faults of hosts, and the run that has them."""

import time
from dataclasses import dataclass
from typing import Any

from hosts.nodes import Nodes

QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
}
"""Ray's health checks find a node dead after 16 s that does not answer; by default, after 65 s."""
RUN = [
    "quickstart",
    *("--model.name=model", "--model.dtype=float32", "--model.threads=1", "--lora.rank=2"),
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
CUTS = tuple(kind for kind, (_, bad, _) in CHANGES.items() if bad.get("cut"))
PROCESSES = {
    "engine": "^ray::EngineActor",
    "collector": "^ray::CollectorActor",
    "learner": "^ray::Hosted",
    "command": "sparring train",
}


def strike(nodes: Nodes, fault: Fault, number: int) -> None:
    """Let a fault happen to a host, and end it."""
    network = nodes.network
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
