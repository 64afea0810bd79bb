"""Settings of all tests, and runs that several files look at."""

import asyncio
import fcntl
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from sparring.core import garbage_collection

# A limit on the time of an example would be a timed assertion, which a busy machine fails.
# The suite tries few examples, and the same ones every time, so that no change fails for what another one
# left; ``--hypothesis-profile search`` looks for new ones.
settings.register_profile("search", deadline=None, max_examples=100)
settings.register_profile("default-suite", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("default-suite")

STARTS_RAY = {
    "test_cluster_elsewhere",
    "test_cluster_evolution",
    "test_cluster_faults",
    "test_cluster_given_adapters::test_roles_that_start_from_an_adapter_and_meet_a_frozen_one_learn_the_same_on_ray",
    "test_cluster_league",
    "test_cluster_learner_group",
    "test_cluster_payoffs::test_a_run_meets_the_same_opponents_on_ray_as_in_one_process",
    "test_cluster_placement",
    "test_cluster_program_collectors",
    "test_cluster_programs",
    "test_cluster_psro",
    "test_cluster_recipes",
    "test_cluster_seats",
    "test_cluster_serve",
    "test_cluster_store",
    "test_cluster_tasks",
    "test_cluster_train::test_a_finished_run_on_ray_goes_on_to_more_updates",
    "test_cluster_train::test_a_run_that_was_resumed_elsewhere_while_it_joined_the_cluster_writes_nothing",
    "test_cluster_view",
    "test_ray_quickstart",
    "test_run_explore::test_explored_games_and_what_the_tree_makes_of_them_are_the_same_on_ray",
    "test_run_own_classes::test_a_game_and_a_loss_of_ones_own_train_the_same_in_one_process_and_on_ray",
}
"""Files that start Ray, and tests of other files that do."""
TRAINS_JOBS = {
    "test_cluster_server",
    "test_finetune_jobs_restarts",
    "test_finetune_jobs_server",
    "test_finetune_local",
}
"""Files whose jobs are trained by the forks of one process, which takes seconds to start."""


def starts_ray(nodeid: str) -> bool:
    """Return whether a test, or its file, is one of :data:`STARTS_RAY`."""
    path, _, name = nodeid.partition("::")
    file = Path(path).stem
    return file in STARTS_RAY or f"{file}::{name.partition('[')[0]}" in STARTS_RAY


class ByFile(LoadScopeScheduling):
    """Runs the tests of a file in one process, and all tests that start Ray or train jobs in the same one.

    Fixtures of a file are made once, and two clusters at a time take longer than one after the other.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        return "Ray" if starts_ray(nodeid) else "jobs" if file in TRAINS_JOBS else file


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes without Ray give way to the first one, whose tests are the longest chain."""
    if sys.platform != "win32" and getattr(config, "workerinput", {}).get("workerid", "gw0") != "gw0":
        os.nice(5)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Search for no garbage while tests are imported, and later only among newer objects: those stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that start Ray: they take one process nearly as long as the others have tests."""
    items.sort(key=lambda item: not starts_ray(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Choose which process runs which tests."""
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _files_are_not_synced() -> Iterator[None]:
    """Do not wait for the disk: what a killed process wrote is there, and no test loses power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _garbage_is_searched_for_less_often() -> Iterator[None]:
    """A search takes nearly a second where so much is loaded, and the runs of tests leave little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage_collection, "SECONDS_BETWEEN_COLLECTIONS", 600.0)
        yield


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Begin every test with the same state of all global generators of the libraries that are loaded."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):  # its own function formats the stack for GPUs that are not there
        (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture(scope="session")
def model() -> Path:
    """A tiny model whose context is long enough for a few-shot prompt, in which every byte is a token."""
    from tiny_models import roomy_model

    return roomy_model()


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """Return a directory that the first process which needs it makes, and that no test changes."""
    place = factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with (place / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.stat(lock.fileno()).st_size:
            make(place / name)
            lock.write("made")
    return place / name


@pytest.fixture(scope="session")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that answers with the words of Kuhn poker."""
    from playing_model import save_playing_model

    return made_once(tmp_path_factory, "playing", save_playing_model)


@pytest.fixture(scope="session")
def games_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Kuhn poker against a pool."""
    from watched_runs import train_games

    return made_once(tmp_path_factory, "games", train_games)


@pytest.fixture(scope="session")
def program_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a program with two policies and sub-episodes."""
    from watched_runs import train_program

    return made_once(tmp_path_factory, "program", train_program)


@pytest.fixture(scope="session")
def mixed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which one seat learns by magnet, and the other by a2c with a critic."""
    from game_runs import configure, run
    from seat_runs import MIXED

    path = tmp_path_factory.mktemp("mixed") / "run"
    run(configure(model, run__save_every="1", **MIXED), path)
    return path


ACTORS_HAVE = {
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    "SPARRING_API_KEY": "the-token",
    "TORCHDYNAMO_DISABLE": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
"""The environment of actors. They load a second faster without torch's compiler, which CPUs do not use."""


@pytest.fixture(scope="module")
def live() -> Iterator[Any]:
    """A server of the adapter ``tiny``, also called ``default``, version 7, whose tokens are bytes."""
    from live_server import TOKEN, engine_over, running
    from sparring.engine.server import create_app
    from tiny_models import tiny_policy

    engine = engine_over(tiny_policy())
    with running(create_app(engine, token=TOKEN, aliases={"default": "tiny"}), engine) as live:
        yield live


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of one node, which the runs of all tests join."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ACTORS_HAVE.items():
            patch.setenv(name, value)
        patch.delenv("OPENROUTER_API_KEY", raising=False)
        patch.chdir(tmp_path_factory.mktemp("cluster"))
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
    ray._common.utils.reset_ray_address()  # otherwise any ray.init() on this machine would join it
    yield started.address
    started.shutdown()


@pytest.fixture(scope="module")
def joined(cluster: str) -> Iterator[str]:
    """The cluster, which this process has joined for all tests of a file."""
    import ray

    ray.init(address=cluster, namespace="unstable", log_to_driver=False, logging_level=40)
    yield cluster
    ray.shutdown()


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start a cluster of its own although Ray was imported without ``ray_import``."""
    import ray

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that are slept; nobody really sleeps."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds:  # libraries let others run by sleeping for 0 seconds
            asked.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    return asked
