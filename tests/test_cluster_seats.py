"""Games on Ray whose seats train different policies."""

import json
from pathlib import Path

import pytest
import torch

from selfplay.cluster.train import train
from selfplay.training.single_process import train as train_locally
from test_cluster_programs import quiet
from test_training_local import configure, metrics_of, model  # noqa: F401 - a fixture
from test_training_policy_critics import MIXED, mixed  # noqa: F401 - a fixture
from test_training_programs import adapter
from test_training_seats import OPPONENTS, SIDES, games

BOTH = ("first", "second")
SETTINGS = SIDES | {"learning__average_decay": "0.5", "learning__learning_rate": "0.003"}
ON_RAY = {"run__runtime": "ray", "ray__collectors": "2"}


def members(run: Path) -> dict[str, dict]:
    """Return the members of the pool in the last checkpoint."""
    state = json.loads((run / "checkpoints" / "step-000004" / "state.json").read_text())
    return {one["uid"]: one for one in state["source"]["pool"]["models"]}


def assert_learned_the_same(here: Path, there: Path) -> None:
    for policy in BOTH:
        start, one, other = (adapter(run, step, policy) for run, step in ((here, 0), (here, 4), (there, 4)))
        assert any((start[name] != one[name]).any() for name in one)
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.fixture(scope="module")
def here(model, tmp_path_factory):  # noqa: F811
    """A run in one process."""
    path = tmp_path_factory.mktemp("here") / "run"
    train_locally(configure(model, **SETTINGS | OPPONENTS), path, quiet())
    return path


def test_sides_that_meet_copies_learn_the_same_on_ray_as_in_one_process(model, here, tmp_path, loopback):  # noqa: F811
    there = tmp_path / "run"
    train(configure(model, **SETTINGS | OPPONENTS | ON_RAY), there, quiet())
    assert_learned_the_same(here, there)
    assert [game.meta["uids"] for game in games(there)] == [game.meta["uids"] for game in games(here)]
    evaluations = [sorted((run / "evaluation").glob("step-000004-*.json")) for run in (here, there)]
    ((one,), (other,)) = ([json.loads(file.read_text()) for file in files] for files in evaluations)
    assert one["model"] == other["model"] == "first-average, second-average"
    known = members(there)
    assert known.keys() == members(here).keys() - {"first-ckpt-4", "second-ckpt-4"}, "of the update itself"
    assert all(known[uid]["games"] for uid in (*BOTH, "first-average", "second-average"))
    assert metrics_of(there)[-1].keys() >= {f"learner/{policy}/loss" for policy in BOTH}


def test_magnet_beside_a_critic_learns_the_same_on_ray_as_in_one_process(model, mixed, tmp_path, loopback):  # noqa: F811
    train(configure(model, run__save_every="1", **MIXED | ON_RAY), tmp_path / "run", quiet())
    assert_learned_the_same(mixed, tmp_path / "run")
    (here,), (there,) = ([metrics_of(run)[-1]] for run in (mixed, tmp_path / "run"))
    assert there["learner/second/value_loss"] == pytest.approx(here["learner/second/value_loss"], abs=1e-4)
