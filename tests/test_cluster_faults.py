"""Runs on Ray whose actors are killed: they finish, or print the reason in one line and can be resumed."""

import os
import random
import signal
import sys
from collections.abc import Iterator

import pytest
import ray

from game_runs import metrics_of
from ray_accounts import problems_of, read_books
from ray_faults import ACTORS, Command, Faults, pid_of
from sparring.cluster import health as health
from sparring.cluster.view import ClusterSource
from sparring.core import SparringError

UPDATES = 16
TOGETHER = ("engine", "tracker", "learner", "buffer", "pool", "collector")
"""Actors that are killed at the same time."""
QUICK = ("--evaluation.every=0", "--evaluation.nash_conv=false", "--evaluation.games=4")


@pytest.fixture(scope="module")
def faults(playing, tmp_path_factory, joined) -> Iterator[Faults]:
    """Runs of a model that plays."""
    directory = tmp_path_factory.mktemp("faults")
    faults = Faults(directory, playing, random.Random(0), address=joined)
    yield faults
    faults.end_commands()


def kill(command: Command, name: str) -> None:
    os.kill(pid_of(command, name), signal.SIGKILL)


def has_torch(command: Command, name: str) -> bool:
    actor = ray.get_actor(name, namespace=command.namespace)
    return ray.get(actor.__ray_call__.remote(lambda self: "torch" in sys.modules))


def games_under_way(command: Command) -> int:
    pool = ray.get_actor("ModelPool", namespace=command.namespace)
    return ray.get(pool.accounts.remote())["in_flight"]


def watched(command: Command, address: str) -> bool:
    """Return whether a view at the cluster shows the run's actors before it ends."""
    source = ClusterSource(address, command.directory.name)
    shown = command.wait_until(lambda: {"Learner", "Engine-0", "Collector-0"} <= source.read().actors.keys())
    step = source.read().step
    source.close()
    return shown and step > 0


@pytest.mark.slow  # test_cluster_overlap and test_cluster_learner_group kill by default
def test_a_run_finishes_by_itself_and_is_watched_although_every_kind_of_actor_is_killed_once(faults):
    command = faults.train(0, *QUICK, updates=UPDATES)
    assert command.wait_until(lambda: command.saved() > 0)
    assert {name for name in ACTORS.values() if has_torch(command, name)} == {"Engine-0", "Learner"}
    assert command.wait_until(lambda: games_under_way(command) > 0)
    for kind in TOGETHER:
        kill(command, ACTORS[kind])
    assert watched(command, faults.address), "from its cluster, whose tracker and learner were killed"
    said = command.end()
    assert command.process.returncode == 0, said
    assert problems_of(command.directory) == []
    assert read_books(command.directory).ledger.replayed > 0
    assert "Traceback" not in said


@pytest.mark.slow  # test_cluster_failover names the actor, test_run_local says how to continue
def test_the_error_names_an_actor_that_cannot_be_restarted_and_the_command_that_resumes_the_run(faults):
    command = faults.train(1, *QUICK, "--ray.max_restarts=0", updates=1000)
    assert command.wait_until(lambda: command.saved() > 0)
    kill(command, ACTORS["buffer"])
    said = command.end()
    assert command.process.returncode == 1
    assert [line for line in said.splitlines() if line.startswith("error: ")] == [said.splitlines()[-1]]
    assert "Buffer died and cannot come back" in said
    assert f"sparring train --resume {command.directory}" in said
    assert "Traceback" not in said


@pytest.mark.slow  # engines that end are tested by default above, and in test_cluster_failover
def test_a_run_starts_with_the_engines_that_have_room_loses_one_for_good_and_keeps_its_best(faults):
    two_collectors = ("--ray.collectors=2", "--ray.cpus_per_collector=0.5", "--credit.type=rae")
    engines = ("--ray.engines=3", "--ray.min_engines=2", "--ray.cpus_per_engine=3")
    best = ("--evaluation.every=12", "--run.keep_best=win rate against random")
    some_layers = "--lora.target_modules=['q_proj']"
    command = faults.train(1, *QUICK[1:], *engines, *two_collectors, *best, some_layers, updates=12)
    assert command.wait_until(lambda: command.saved() > 1)
    ray.kill(ray.get_actor("Engine-0", namespace=command.namespace))
    said = command.end()
    assert command.process.returncode == 0, said
    assert "Engine-2 is not there yet; the run starts without it" in said
    assert said.count("LoRA adapts self_attn.q_proj; it leaves out") == 1
    assert problems_of(command.directory) == []
    assert "Traceback" not in said
    kept, saved = (command.directory / place / "step-000012" for place in ("best", "checkpoints"))
    weights = [(place / "adapter_model.safetensors").read_bytes() for place in (kept, saved)]
    assert weights[0] == weights[1]
    lines = metrics_of(command.directory)
    assert [line["step"] for line in lines] == list(range(1, 13))
    before_and_after = [line["time/evaluation_seconds"] for line in (lines[0], lines[-1])]
    assert min(before_and_after) > 0


async def test_the_loss_of_a_clusters_head_is_an_error(monkeypatch):
    monkeypatch.setattr(health, "HEAD_PATIENCE", 0.0)
    monkeypatch.setattr(health, "ASK_EVERY", 0.01)
    one = health.Health({}, 60.0, head="127.0.0.1:1")
    with pytest.raises(SparringError, match=r"the head of the cluster, .* has not answered"):
        await one.watch()
    assert one.head_is_lost
