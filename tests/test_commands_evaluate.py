"""Matches of runs and adapters against each other, and their results for machines."""

import importlib
import json
import shutil
from itertools import count

import pytest

from game_runs import configure, run
from matrices import first_of
from program_runs import configure as configure_program
from program_runs import run as run_program
from sparring.cli.main import main
from sparring.commands.evaluate import evaluate
from sparring.core import InputError


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    run(configure(model, learning__steps="1", evaluation__games="2", evaluation__nash_conv="false"), path)
    return path


def play(model_or_run, opponent):
    return evaluate(str(model_or_run), "kuhn_poker", str(opponent), 8)


def test_runs_with_adapters_of_different_shapes_play_each_other(model, trained, tmp_path):
    changes = {"evaluation__games": "2", "evaluation__nash_conv": "false", "lora__rank": "3", "seed": "1"}
    run(configure(model, learning__steps="1", **changes), tmp_path / "two")
    assert play(trained, tmp_path / "two").result.games == 8
    adapter = tmp_path / "two" / "checkpoints" / "step-000001"
    assert play(trained, adapter).result.games == 8


def test_a_run_called_base_is_not_taken_for_the_base_model(model, trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "runs" / "base")
    monkeypatch.chdir(tmp_path)
    by_name, by_path, untrained = (
        evaluate(str(name), "kuhn_poker", "base", 2, nash_conv=True).exact
        for name in ("base", trained, model)
    )
    assert by_name.nash_conv == by_path.nash_conv != untrained.nash_conv


def test_an_opponent_on_a_base_of_another_quantization_is_rejected(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "two")
    config = tmp_path / "two" / "config.toml"
    config.write_text(config.read_text().replace('quantization = "none"', 'quantization = "nf4"'))
    with pytest.raises(InputError, match=r"the base model of .*two has the quantization nf4, not none"):
        play(trained, tmp_path / "two")
    adapter = tmp_path / "two" / "checkpoints" / "step-000001"
    assert play(trained, adapter).result.games == 8, "an adapter alone plays on any"


@pytest.mark.slow  # test_commands_export asks for one
def test_the_error_for_a_run_of_several_policies_asks_for_one_of_them(model, tmp_path):
    run_program(configure_program(model, tmp_path, learning__steps="1"), tmp_path / "two")
    with pytest.raises(InputError, match=r"Name one: .*step-000001/hider or .*/seeker"):
        play(tmp_path / "two", "base")
    assert play(tmp_path / "two" / "checkpoints" / "step-000001" / "seeker", "base").result.games == 8


def evaluated(capsys, *arguments):
    """Run the command; return what it printed."""
    capsys.readouterr()
    assert main(["eval", *map(str, arguments), "--env", "kuhn_poker", "--games", "8"]) == 0
    return capsys.readouterr()


def test_a_result_for_machines_is_alone_on_standard_output(trained, capsys):
    printed = evaluated(capsys, trained, "--json")
    result = json.loads(printed.out)
    assert (result["kind"], result["games"], result["opponent"]) == ("match", 8, "random")
    assert result["model"] == str(trained)
    assert result["adapter"] == str(trained / "checkpoints" / "step-000001")
    assert result["opponent_adapter"] is None
    assert (result["template"], result["temperature"], result["seed"]) == ("fewshot-chat", 1.0, 0)
    assert result["win_rate"][0] <= result["win_rate"][1] <= result["win_rate"][2]
    assert "Games ended by an invalid move" in printed.err, "the table is for the reader"


def test_a_result_can_be_written_to_a_file_beside_the_table(trained, tmp_path, capsys):
    printed = evaluated(capsys, f"{trained}@0", "--opponent", f"{trained}@last", "--out", tmp_path / "r.json")
    assert "Games ended by an invalid move" in printed.out
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["adapter"] == str(trained / "checkpoints" / "step-000000")
    assert result["opponent_adapter"] == str(trained / "checkpoints" / "step-000001")
    assert result["opponent"] == f"{trained}@last"


def test_the_exact_measure_is_computed_where_it_is_asked_for(trained, capsys):
    exact = json.loads(evaluated(capsys, trained, "--nash-conv", "--json").out)["exact"]
    assert exact["env_id"] == "kuhn_poker"
    assert exact["nash_conv"] == pytest.approx(sum(exact["exploitability"]))
    assert len(exact["policy"]) == 12
    assert json.loads(evaluated(capsys, trained, "--json").out)["exact"] is None


def test_a_measure_that_would_take_too_long_leaves_the_match(trained, capsys, monkeypatch):
    module = importlib.import_module("sparring.evaluation.nash_conv")  # not its function
    monkeypatch.setattr(module, "SCORED_AT_ONCE", 5)
    monkeypatch.setattr(module, "perf_counter", count(0, 10**6).__next__)
    printed = evaluated(capsys, trained, "--nash-conv", "--json")
    assert json.loads(printed.out)["exact"] is None
    assert json.loads(printed.out)["games"] > 0
    assert "note: NashConv is left out: scoring the 12 positions" in " ".join(printed.err.split())


@pytest.mark.parametrize("env_id", first_of(["TicTacToe-v0-train", "tic_tac_toe"]))
def test_moves_are_compared_with_perfect_play_where_that_is_known(env_id, playing, tmp_path, capsys):
    out = tmp_path / "r.json"
    assert main(["eval", str(playing), "--env", env_id, "--games", "2", "--out", str(out)]) == 0
    assert "Moves that keep their value" in capsys.readouterr().out
    result = json.loads(out.read_text())
    kept = result["kept_value"]
    assert kept["positions"] == result["moves"]
    assert kept["share"][1] == pytest.approx(kept["kept"] / kept["positions"])
    assert json.loads(evaluated(capsys, playing, "--json").out)["kept_value"] is None, "Kuhn poker has luck"
