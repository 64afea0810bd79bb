"""Runs on Ray whose seats train different policies, one from a given adapter, and meet a given one.

The run of most tests plays two games of one's own, with a loss of one's own.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from doc_pages import DOCS, save_named_blocks
from game_runs import configure, metrics_of, quiet
from program_runs import adapter
from seat_runs import MIXED, OPPONENTS, SIDES, critics_advantages, games
from sparring.cluster.run import train
from sparring.commands.doctor import diagnose
from sparring.learn.checkpoints import save_adapter
from sparring.run.assembly import build_policy
from sparring.run.single_process import train as train_locally
from tiny_models import perturb_adapter

BOTH = ("first", "second")
SETTINGS = SIDES | OPPONENTS | {"learning__average_decay": "0.5", "learning__learning_rate": "0.003"}


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
def on_ray(cluster) -> dict[str, str]:
    return {"run__runtime": "ray", "ray__collectors": "2", "ray__address": cluster}


@pytest.fixture(scope="module")
def given(model, tmp_path_factory) -> Path:
    """A directory of two adapters, ``start`` and ``teacher``."""
    path, config = tmp_path_factory.mktemp("given"), configure(model, **SETTINGS)
    policy = build_policy(config.model, config.lora, 0, print)
    for seed, name in enumerate(("start", "teacher"), start=5):
        perturb_adapter(policy, seed=seed)
        save_adapter(path / name, policy, config.model.name)
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """A directory with the game and the loss that the pages write."""
    path = tmp_path_factory.mktemp("own")
    for page in ("tutorial-game.md", "howto-custom-algorithm.md"):
        save_named_blocks(DOCS / page, path)
    return path


@pytest.fixture(scope="module")
def settings(given, own) -> dict[str, str]:
    sticks = f'{{id = "{own / "sticks.py"}:Sticks", policies = ["second", "first"]}}'
    clipped = f'path = "{own / "clipped.py"}:ClippedPolicyGradient"'
    return SETTINGS | {
        "envs": SIDES["envs"].replace("]}]", f"]}}, {sticks}]"),
        "learning__algorithm": f'{{{clipped}, options = {{clip = 0.1, regulariser = "uniform"}}}}',
        "start__first": str(given / "start"),
        "frozen__teacher": str(given / "teacher"),
        "population__fixed_opponents": "['base', 'teacher']",
        "evaluation__opponents": "['base', 'teacher']",
    }


@pytest.fixture(scope="module")
def here(model, settings, tmp_path_factory):
    """A run in one process."""
    path = tmp_path_factory.mktemp("here") / "run"
    train_locally(configure(model, **settings), path, quiet())
    return path


@pytest.fixture(scope="module")
def there(model, settings, on_ray, tmp_path_factory):
    """The same run on Ray."""
    path = tmp_path_factory.mktemp("there") / "run"
    train(configure(model, **settings | on_ray), path, quiet())
    return path


def evaluated_models(run: Path, step: int = 4) -> dict[str, str]:
    """Return the models of the evaluations after an update, by file."""
    files = (run / "evaluation").glob(f"step-{step:06d}-*.json")
    return {file.name: json.loads(file.read_text())["model"] for file in files}


def test_sides_that_start_from_an_adapter_and_meet_copies_and_a_frozen_one_learn_the_same_on_ray(
    given, here, there
):
    assert_learned_the_same(here, there)
    began, start = adapter(there, 0, "first"), load_file(given / "start" / "adapter_model.safetensors")
    assert all(torch.equal(began[name], start[name]) for name in start)
    assert [game.meta["uids"] for game in games(there)] == [game.meta["uids"] for game in games(here)]
    met = {uid for game in games(there) for uid in game.meta["uids"]}
    assert met >= {"fixed-base", "fixed-teacher", "first-ckpt-0"}
    turns = [[turn["text"] for game in games(run) for turn in game.extras["turns"]] for run in (here, there)]
    assert turns[0] == turns[1], "the frozen adapter and the first copies answer the same"
    known = members(there)
    assert known.keys() == members(here).keys() - {"first-ckpt-4", "second-ckpt-4"}, "of the update itself"
    assert all(known[uid]["games"] for uid in (*BOTH, "first-average", "second-average"))
    assert metrics_of(there)[-1].keys() >= {f"learner/{policy}/loss" for policy in BOTH}


def test_a_game_and_a_loss_of_ones_own_train_and_are_evaluated_on_ray_as_in_one_process(own, here, there):
    assert (
        evaluated_models(there)
        == evaluated_models(here)
        == {
            f"step-000004-{kind}-{opponent}.json": f"{one}-average, {other}-average"
            for kind, one, other in (("Talk", *BOTH), ("Sticks", *reversed(BOTH)))
            for opponent in ("base", "teacher")
        }
    )
    for run in (here, there):
        assert {game.episode_type for game in games(run)} == {"Talk", "Sticks"}
        assert all(metrics_of(run)[-1][f"learner/{policy}/regulariser_weight"] > 0 for policy in BOTH)
        said = [run / "metrics.jsonl", *(run / "evaluation").glob("*-Sticks-*.json")]
        assert [path for path in said if str(own) in path.read_text()] == []


PLACES = {
    "learning__steps": "2",
    "population__sample_mode": "fixed",
    "population__fixed_opponents": "['base', 'teacher']",
    "population__places": "{base = 'first', teacher = 'second'}",
    "evaluation__every": "0",
    "evaluation__opponents": "['base']",
}


FROZEN = {
    "learning__steps": "2",
    "envs": SIDES["envs"].replace("second", "teacher"),
    "evaluation__every": "0",
}


# By default, the run above meets a frozen adapter, and test_run_seats has one in a seat in one process.
@pytest.mark.parametrize(
    ("changes", "met"),
    [
        pytest.param(PLACES, {("fixed-base", "second"), ("first", "fixed-teacher")}, marks=pytest.mark.slow),
        pytest.param(FROZEN, {("first", "fixed-teacher")}, marks=pytest.mark.slow),
    ],
    ids=["places", "a frozen seat"],
)
def test_who_holds_the_seats_of_a_policy_learns_the_same_on_ray_as_in_one_process(
    changes, met, model, given, tmp_path, on_ray
):
    changes = SIDES | changes | {"frozen__teacher": str(given / "teacher")}
    train_locally(configure(model, **changes), tmp_path / "here", quiet())
    train(configure(model, **changes | on_ray), tmp_path / "there", quiet())
    uids = [[tuple(game.meta["uids"]) for game in games(tmp_path / run)] for run in ("here", "there")]
    assert uids[0] == uids[1]
    assert {*uids[1]} == met
    assert evaluated_models(tmp_path / "here", 2) == evaluated_models(tmp_path / "there", 2)
    for policy in BOTH if "population__places" in changes else BOTH[:1]:
        one, other = (adapter(tmp_path / run, 2, policy) for run in ("here", "there"))
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.mark.slow  # in one process it is tested by default, in test_training_policy_critics
def test_magnet_beside_a_critic_learns_the_same_on_ray_as_in_one_process(model, mixed, tmp_path, on_ray):
    train(configure(model, run__save_every="1", **MIXED | on_ray), tmp_path / "run", quiet())
    assert_learned_the_same(mixed, tmp_path / "run")
    (here,), (there,) = ([metrics_of(run)[-1]] for run in (mixed, tmp_path / "run"))
    assert there["learner/second/value_loss"] == pytest.approx(here["learner/second/value_loss"], abs=1e-4)
    judged = [critics_advantages(run) for run in (mixed, tmp_path / "run")]
    assert judged[1] == pytest.approx(judged[0], abs=1e-3)
    findings = [
        [one.to_dict() for one in diagnose(str(run))[0].findings] for run in (mixed, tmp_path / "run")
    ]
    assert findings[0] == findings[1] != []
