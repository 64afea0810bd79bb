"""Matches of runs and adapters against each other."""

import pytest
from rich.console import Console

from selfplay.commands.evaluate import evaluate
from selfplay.core import InputError
from test_training_local import configure, model, run  # noqa: F401 - a fixture
from test_training_programs import configure as configure_program
from test_training_programs import run as run_program


def play(model_or_run, opponent):
    return evaluate(
        str(model_or_run),
        "kuhn_poker",
        str(opponent),
        8,
        template=None,
        num_players=None,
        seed=0,
        temperature=1.0,
        console=Console(quiet=True),
    )


def test_runs_with_adapters_of_different_shapes_play_each_other(model, tmp_path):  # noqa: F811
    run(configure(model, learning__steps="1"), tmp_path / "one")
    run(configure(model, learning__steps="1", lora__rank="3", seed="1"), tmp_path / "two")
    assert play(tmp_path / "one", tmp_path / "two").result.games == 8
    adapter = tmp_path / "two" / "checkpoints" / "step-000001"
    assert play(tmp_path / "one", adapter).result.games == 8


def test_an_opponent_on_another_base_is_rejected(model, tmp_path):  # noqa: F811
    run(configure(model, learning__steps="1"), tmp_path / "one")
    with pytest.raises(InputError, match=r"--opponent: the base model of smollm2-135m is smollm2-135m, not "):
        play(tmp_path / "one", "smollm2-135m")


def test_the_error_for_a_run_of_several_policies_asks_for_one_of_them(model, tmp_path):  # noqa: F811
    run_program(configure_program(model, tmp_path, learning__steps="1"), tmp_path / "two")
    with pytest.raises(InputError, match=r"Name one: .*step-000001/hider or .*/seeker"):
        play(tmp_path / "two", "base")
    assert play(tmp_path / "two" / "checkpoints" / "step-000001" / "seeker", "base").result.games == 8
