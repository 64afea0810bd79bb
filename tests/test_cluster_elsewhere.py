"""Runs on two nodes, of which one may open no file of the command."""

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from conftest import ACTORS_HAVE
from game_runs import configure, quiet
from league_runs import LEAGUE
from program_runs import configure as configure_program
from ray_accounts import problems_of
from ray_faults import QUIET, Faults, pid_of
from run_files import Weights, same_weights
from seat_runs import SIDES
from sparring.cluster.actor_classes import CommandFilesActor, restarting
from sparring.cluster.adapters import COMMAND_FILES
from sparring.cluster.calls import RemoteLogger
from sparring.cluster.elsewhere import command_host
from sparring.cluster.placement import beside_command
from sparring.cluster.run import train
from sparring.config import Config
from sparring.config.run import RaySettings
from sparring.run.single_process import train as train_locally

pytestmark = pytest.mark.slow

BLIND = '''
"""Let this process open, list, make and delete nothing below a directory."""
import os
import random
import sys

HIDDEN = os.environ["HIDDEN"]


def refuse(event, arguments):
    if event.partition(".")[0] in ("open", "os", "shutil"):
        for one in arguments:
            if isinstance(one, (str, bytes, os.PathLike)) and os.fsdecode(one).startswith(HIDDEN):
                raise FileNotFoundError(2, "this machine has no such file", os.fsdecode(one))


sys.addaudithook(refuse)
'''
"""``sitecustomize.py`` of the other node."""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> Path:
    """The directory that only the command's node sees."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def address(hidden, tmp_path_factory) -> Iterator[str]:
    """A cluster whose head has no CPU, so that learners, engines and collectors are on another node."""
    there = tmp_path_factory.mktemp("there")
    (there / "sitecustomize.py").write_text(BLIND)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ACTORS_HAVE.items():
            patch.setenv(name, value)
        patch.chdir(there)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        seen = {"HIDDEN": str(hidden), "SPARRING_CACHE": str(there / "cache")}
        paths = os.pathsep.join([str(there), os.environ["PYTHONPATH"]])
        cluster.add_node(num_cpus=4, node_ip_address="127.0.0.2", env_vars={**seen, "PYTHONPATH": paths})
    ray._common.utils.reset_ray_address()
    yield cluster.address
    cluster.shutdown()


def on_ray(config: Config, address: str, **ray: Any) -> Config:
    run = config.run.model_copy(update={"runtime": "ray"})
    settings = config.ray.model_copy(update={"address": address, **ray})
    return config.model_copy(update={"run": run, "ray": settings})


def weights(run: Path) -> Weights:
    """The adapters and learners that a run has kept."""
    files = [path for name in ("checkpoints", "best") for path in (run / name).rglob("*.safetensors")]
    return {str(path.relative_to(run)): load_file(path) for path in files}


def same(one: Path, other: Path, rounding: float) -> bool:
    return same_weights(weights(one), weights(other), rounding)


OWN = """
from own_words import words
from sparring.learn.algorithms import Reinforce


class Louder(Reinforce):
    pass
"""


WORDS = """
from sparring.envs.templates import get_template

words = get_template("fewshot-chat")
"""


@pytest.fixture(scope="module")
def own(hidden, model) -> Path:
    """A user's own model, template and loss."""
    shutil.copytree(model, hidden / "model")
    (hidden / "own.py").write_text(OWN)
    (hidden / "own_words.py").write_text(WORDS)
    return hidden


def both_ways(
    config: Config, address: str, place: Path, rounding: float = 0.0, **ray: Any
) -> tuple[Path, Path]:
    """Train in one process and on the cluster; both end with the same adapters."""
    train_locally(config, place / "here", quiet())
    train(on_ray(config, address, **ray), place / "there", quiet())
    assert len(weights(place / "here")) > 4
    assert same(place / "here", place / "there", rounding)
    return place / "here", place / "there"


def test_games_with_a_template_and_a_loss_of_ones_own_end_with_the_adapters_of_one_process(own, address):
    changes = {
        "envs": f'[{{id = "kuhn_poker", template = "{own / "own.py"}:words"}}]',
        "learning__algorithm": f'{{path = "{own / "own.py"}:Louder"}}',
        "learning__average_decay": "0.5",
        "evaluation__nash_conv": "false",
        "run__keep_best": "win rate against random",
        "run__save_every": "1",
    }
    both_ways(configure(own / "model", **changes), address, own / "games")


def test_a_program_with_given_adapters_and_two_learners_ends_with_the_adapters_of_one_process(own, address):
    earlier = SIDES | {"evaluation__every": "0", "learning__steps": "1"}
    train_locally(configure(own / "model", **earlier), own / "earlier", quiet())
    at = own / "earlier" / "checkpoints" / "step-000001"
    given = {
        "start__hider": str(at / "first"),
        "frozen__teacher": str(at / "second"),
        "roles__Seeker__policy": "teacher",
        "evaluation__every": "0",
        "run__save_every": "1",
    }
    both_ways(configure_program(own / "model", own, **given), address, own / "program", 1e-5, learners=2)


def test_a_league_ends_with_the_adapters_of_one_process(own, address):
    short = {"learning__steps": "3", "collection__games_per_step": "24", "evaluation__every": "0"}
    here, there = both_ways(configure(own / "model", **LEAGUE | short), address, own / "league", 1e-5)
    assert (here / "standings.jsonl").read_bytes() == (there / "standings.jsonl").read_bytes()


def test_a_run_ends_as_an_undisturbed_one_although_learner_files_and_command_are_killed(own, address):
    ray.init(address=address, **QUIET)
    try:
        faults = Faults(own / "faults", own / "model", random.Random(0), address=address)
        short = ("--evaluation.every=0", "--evaluation.nash_conv=false", "--run.save_every=20")
        whole = faults.train(0, *short, updates=40)
        said = whole.end()
        assert whole.process.returncode == 0, said
        cut = faults.train(0, *short, updates=40)
        for saved, victims in ((1, ["Learner"]), (5, ["CommandFiles"]), (10, ["CommandFiles", "Learner"])):
            assert cut.wait_until(lambda saved=saved: cut.saved() >= saved)
            for name in victims:
                os.kill(pid_of(cut, name), signal.SIGKILL)
        assert cut.wait_until(lambda: cut.saved() >= 15)
        cut.process.kill()
        cut.end()
        cut = faults.resume(cut.directory)
        said = cut.end()
        assert cut.process.returncode == 0, said
        assert problems_of(cut.directory) == []
        assert same(whole.directory, cut.directory, 0.0)
    finally:
        faults.end_commands()
        ray.shutdown()


def test_files_are_copied_on_other_nodes_unless_every_node_sees_them(address):
    ray.init(address=address, namespace="nodes", **QUIET)
    try:
        other = restarting(RemoteLogger, num_cpus=1).remote(None)
        files = restarting(CommandFilesActor, name=COMMAND_FILES, **beside_command()).remote("model")
        for shared in (False, True):
            command = command_host(RaySettings(shared_directory=shared), "nodes")
            looks = lambda self, command=command: command.files_if_elsewhere() is not None  # noqa: E731
            found = ray.get([one.__ray_call__.remote(looks) for one in (other, files)])
            assert found == [not shared, False]
        ray.kill(other)
        ray.kill(files)
    finally:
        ray.shutdown()
