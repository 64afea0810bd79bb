"""Policy-space response oracles on Ray: best responses, payoffs, NashConv, a stop between two stages."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from playing_model import save_playing_model
from program_files import write_program
from program_runs import SMALL
from psro_runs import OF_THREE, SHORT, THREE, configuration, psro, state_of
from sparring.cli.main import main
from sparring.core import SparringError
from sparring.evaluation.tournament import Tournament


@pytest.mark.slow  # test_commands_psro trains best responses of two on a cluster by default
@pytest.mark.parametrize("nash_conv", ["false", "true"])
def test_psro_finds_the_same_on_ray_as_in_one_process_and_goes_on_after_a_stop(
    playing, tmp_path, monkeypatch, cluster, capsys, nash_conv
):
    here, there = tmp_path / "here", tmp_path / "there"
    text = SHORT.replace("iterations = 2", "iterations = 1")
    text = text.replace("nash_conv = true", f"nash_conv = {nash_conv}")
    here.mkdir()
    assert psro(configuration(here, text, playing)) == 0
    there.mkdir()
    file = Path(shutil.copy(here / "game.toml", there))

    def stop(*arguments):
        raise SparringError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr(Tournament, "hold", stop)
        assert psro(file, "--runtime", "ray", "--address", cluster) == 1
    run = there / "psro" / "member-001"
    trained = (run / "metrics.jsonl").stat().st_mtime_ns
    capsys.readouterr()
    assert psro(file, "--runtime", "ray", "--address", cluster) == 0
    assert "a best response" in capsys.readouterr().out
    assert (run / "metrics.jsonl").stat().st_mtime_ns == trained, "it is not trained again"
    one, other = (state_of(where / "psro") for where in (here, there))
    assert other["games"] == one["games"] == [[0, 20], [20, 0]]
    for first, second in zip(one["iterations"], other["iterations"], strict=True):
        assert second.pop("nash_conv") == pytest.approx(first.pop("nash_conv"), abs=1e-3)
        assert first == second
    mixture = json.loads((there / "psro" / "mixture.json").read_text())
    adapters = [entry.get("adapter") for entry in mixture["members"]]
    assert adapters == [None, "member-001/checkpoints/step-000002"]
    assert 'runtime = "ray"' in (run / "config.toml").read_text()
    assert psro(file, "--runtime", "ray", "--address", "127.0.0.1:1") == 0, "nothing is left to be done there"
    assert psro(file) == 2
    assert "holds another PSRO" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("played", ["three seats", "a program"])
def test_a_psro_of_three_finds_the_same_on_ray_as_in_one_process(played, model, tmp_path, cluster):
    file = tmp_path / "game.toml"
    if played == "three seats":
        taught = save_playing_model(tmp_path / "model", THREE, players=3)
        configuration(tmp_path, OF_THREE.replace("0.003", "0.1"), taught)
    else:
        text = f"[program]\ntype = 'python'\npath = '{write_program(tmp_path)}:Three'\n"
        file.write_text(text)
    options = ["--run.directory", str(tmp_path)]
    if played == "a program":
        small = SMALL | {"model.name": str(model), "learning.steps": "1"}
        small |= {"psro.payoff_games": "6", "psro.iterations": "1", "psro.solver": "uniform"}
        options += [word for name, value in small.items() for word in (f"--{name}", value)]
    for name, runtime in (("here", []), ("there", ["--runtime", "ray", "--address", cluster])):
        assert main(["psro", str(file), *options, "--name", name, *runtime]) == 0
    one, other = (state_of(tmp_path / name) for name in ("here", "there"))
    for first, second in zip(one["iterations"], other["iterations"], strict=True):
        if played == "three seats":
            assert second.pop("nash_conv") == pytest.approx(first.pop("nash_conv"), abs=1e-3)
        assert first == second
    assert one["payoffs"] == other["payoffs"]
    assert np.any(one["payoffs"]), "the members play differently"
