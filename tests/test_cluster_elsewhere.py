"""Runs on two nodes, of which one may open no file of the command."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from conftest import ACTORS_HAVE
from game_runs import configure, quiet
from sparring.cluster.run import train
from sparring.config import Config
from sparring.run.single_process import train as train_locally

pytestmark = pytest.mark.slow

BLIND = '''
"""Let this process open, list, make and delete nothing below a directory."""
import os
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


def on_ray(config: Config, address: str) -> Config:
    run = config.run.model_copy(update={"runtime": "ray"})
    return config.model_copy(update={"run": run, "ray": config.ray.model_copy(update={"address": address})})


def adapters(run: Path) -> dict[str, bytes]:
    names = ("checkpoints", "best")
    files = [path for name in names for path in (run / name).rglob("*.safetensors")]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_games_end_with_the_adapters_of_one_process(model, hidden, address):
    own = model
    config = configure(own, learning__average_decay="0.5", run__save_every="1")
    train_locally(config, hidden / "here", quiet())
    train(on_ray(config, address), hidden / "there", quiet())
    there = adapters(hidden / "there")
    assert there == adapters(hidden / "here")
    assert len(there) > 4
