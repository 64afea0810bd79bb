"""A finished run goes on to a larger number of updates, if nothing was to change until its last one."""

import re

import pytest
from rich.console import Console

from game_runs import CONSTANT, configure, metrics_of, run
from kill_resume import differences, fingerprint
from sparring.cli.main import main
from sparring.config import dump_config, load_config
from sparring.core import InputError
from sparring.evaluation import MatchResult, write_evaluation
from sparring.run.resume import resumed_config
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import resume


def trained(path):
    """Everything that training leaves; what is measured on the way has more games at a last update."""
    found = fingerprint(path)
    del found["evaluations"]
    found["metrics"] = [
        {name: one for name, one in line.items() if name.split("/")[0] in ("learner", "buffer", "inference")}
        for line in found["metrics"]
    ]
    return found


def test_a_run_that_is_made_longer_trains_as_one_that_was_so_from_the_start(model, tmp_path, capsys):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    run(configure(model, **CONSTANT, learning__steps="4"), whole)
    run(configure(model, **CONSTANT, learning__steps="2"), longer)
    assert main(["train", "--resume", str(longer)]) == 2
    assert "is finished (2 of 2 updates). For more updates give --learning.steps" in capsys.readouterr().err
    assert main(["train", "--resume", str(longer), "--learning.steps", "4"]) == 0
    assert len(metrics_of(longer)) == 4
    assert trained(whole)["metrics"][3]["learner/packed_tokens"] > 0
    assert differences(trained(whole), trained(longer)) == []
    assert load_config(str(longer / "config.toml"), {}).learning.steps == 4
    with pytest.raises(InputError, match=r"is finished \(4 of 4 updates\)"):
        resume(longer, Console(quiet=True))


def a_run(tmp_path, preset="kuhn", **changes):
    """Return the directory of a run that has begun, with nothing but its configuration."""
    path = tmp_path / "run"
    path.mkdir()
    settings = {name.replace("__", "."): one for name, one in changes.items()}
    (path / "config.toml").write_text(dump_config(load_config(preset, settings)))
    return path


def longer(path, steps=1000):
    return resumed_config(RunDirectory(path), {"learning.steps": str(steps)}).learning.steps


CONSTANT_RATE = {"learning__schedule": "constant"}
OWN_MAGNET = {"learning__policies__default": '{algorithm = {type = "magnet"}}'}


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("kuhn", {}),
        ("league", {}),
        ("quickstart", CONSTANT_RATE | {"learning__algorithm__regulariser": "none"}),
        ("quickstart", {"learning__learning_rate_end": "1e-4"} | OWN_MAGNET),
    ],
)
def test_a_run_in_which_nothing_is_scheduled_may_be_longer(tmp_path, preset, changes):
    assert longer(a_run(tmp_path, preset, **changes)) == 1000


@pytest.mark.parametrize(
    ("preset", "changes", "field"),
    [
        ("quickstart", {}, "learning.learning_rate"),
        ("quickstart", OWN_MAGNET, "learning.learning_rate"),
        ("quickstart", CONSTANT_RATE, "learning.algorithm.regulariser_weight"),
        (
            "kuhn",
            {"learning__policies__default": '{algorithm = {type = "ppo", regulariser = "uniform"}}'},
            "learning.policies.default.algorithm.regulariser_weight",
        ),
        ("proposer-solver", {}, "learning.policies.proposer.learning_rate"),
        ("debate", {}, "learning.learning_rate"),
    ],
)
def test_a_run_in_which_something_changes_until_the_end_keeps_its_number(tmp_path, preset, changes, field):
    path = a_run(tmp_path, preset, **changes)
    with pytest.raises(
        InputError, match=rf"learning\.steps: {re.escape(field)} of this run changes until update"
    ):
        longer(path)


def test_a_number_of_updates_may_only_grow(tmp_path):
    with pytest.raises(InputError, match=r"learning\.steps: is 39, but the run has 40 updates"):
        longer(a_run(tmp_path), 39)


def test_a_run_that_has_settled_makes_no_more_updates(tmp_path):
    path = a_run(tmp_path, evaluation__patience="2")
    for step in range(4):
        match = MatchResult(
            env_id="kuhn_poker",
            num_players=2,
            model="m",
            opponent="random",
            seed=0,
            requested_games=9,
            games=9,
            reward_squares=9.0,
        )
        write_evaluation(path / "evaluation", 10 * step, "kuhn_poker-random", match)
    with pytest.raises(InputError, match="the run has settled"):
        longer(path)


def test_a_best_response_of_a_psro_keeps_its_number(tmp_path):
    (tmp_path / "psro.toml").write_text("")
    with pytest.raises(InputError, match="belongs to a PSRO"):
        longer(a_run(tmp_path))


def test_nothing_else_changes_in_a_run_that_has_begun(tmp_path):
    with pytest.raises(InputError, match=r"seed: cannot change in a run that has begun"):
        resumed_config(RunDirectory(a_run(tmp_path)), {"seed": "7"})
