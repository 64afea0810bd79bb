"""``sparring eval`` and ``play`` for runs of programs: checkpoints, the base model or a person in a role."""

import json
import shutil

import pytest

from program_runs import configure, run
from sparring.cli.main import main


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A finished run of a program with two policies."""
    path = tmp_path_factory.mktemp("programs")
    run(configure(model, path, "Measured", learning__learning_rate="0.1"), path / "run")
    return path / "run"


def measured(*arguments, capsys):
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["measures"]["sum of letters"]["values"]


def in_training(path, step):
    (file,) = (path / "evaluation").glob(f"step-{step:06d}-sum*.json")
    return json.loads(file.read_text())["values"]


def test_a_programs_run_is_measured_as_its_training_does(finished, capsys):
    assert measured(finished, capsys=capsys) == in_training(finished, 4)
    assert measured(f"{finished}@2", capsys=capsys) == in_training(finished, 2)


def test_an_evaluation_continues_from_the_programs_state_in_the_checkpoint(model, tmp_path, capsys):
    run(configure(model, tmp_path, "Sampled"), tmp_path / "run")
    for step in (2, 4):
        assert main(["eval", f"{tmp_path / 'run'}@{step}", "--json"]) == 0
        measures = json.loads(capsys.readouterr().out)["measures"]
        assert measures["stored"]["values"] == [100 + step], "a number is stored in each step"


def test_a_frozen_policy_plays_its_role(model, finished, tmp_path, capsys):
    teacher = {"frozen__teacher": str(finished / "checkpoints" / "step-000004" / "hider")}
    frozen = configure(model, tmp_path, "Measured", **teacher, roles__Hider__policy="teacher")
    run(frozen, tmp_path / "run")
    assert measured(tmp_path / "run", capsys=capsys) == in_training(finished, 4)
    assert measured(tmp_path / "run", "--role", "Hider=base", capsys=capsys) == in_training(finished, 0)


@pytest.mark.slow  # test_run_programs measures at one
def test_the_command_measures_at_a_roles_test_temperature(model, tmp_path, capsys):
    cold = {f"roles__{role}__test_temperature": "0" for role in ("Hider", "Seeker")}
    run(configure(model, tmp_path, "Measured", **cold), tmp_path / "run")
    measures = measured(tmp_path / "run", capsys=capsys)
    assert measures == in_training(tmp_path / "run", 4)
    assert len(set(measures)) == 1, "the most likely answer does not depend on the seed"


@pytest.mark.parametrize("method", ["load_state_dict", "evaluate", "shutdown"])
def test_an_error_of_the_programs_own_method_is_one_line(finished, tmp_path, method, capsys):
    shutil.copytree(finished, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    failing = config.read_text().replace(":Measured", ":Failing")
    config.write_text(failing.replace("[program.options]", f'[program.options]\nmethod = "{method}"'))
    assert main(["eval", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert f"error: the program's {method} failed: ValueError('as written')" in said
    assert said.count("\n") == 1


def test_a_role_is_played_by_another_checkpoint_or_the_base_model(finished, capsys):
    untrained = in_training(finished, 0)
    assert measured(finished, "--role", f"Hider={finished}@0", capsys=capsys) == untrained
    assert measured(finished, "--role", "Hider=base", capsys=capsys) == untrained
    assert measured(finished, "--role", "Seeker=base", capsys=capsys) == in_training(finished, 4)
    assert untrained != in_training(finished, 4), "or this test cannot tell"


def test_a_role_is_played_by_any_adapter_whatever_the_name_of_its_policy(finished, tmp_path, capsys):
    checkpoint = finished / "checkpoints" / "step-000000"
    shutil.copytree(checkpoint / "hider", tmp_path / "of-another-player")
    for place in (checkpoint / "hider", tmp_path / "of-another-player"):
        assert measured(finished, "--role", f"Hider={place}", capsys=capsys) == in_training(finished, 0)


def test_a_checkpoint_that_plays_several_roles_plays_each_with_that_roles_policy(finished, capsys):
    words = [word for role in ("Hider", "Seeker") for word in ("--role", f"{role}={finished}@2")]
    assert measured(finished, *words, capsys=capsys) == in_training(finished, 2)


def test_the_table_has_counts_and_intervals(finished, capsys):
    assert main(["eval", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "sum of letters" in said
    assert " 3 " in said


@pytest.mark.parametrize("role", ["Hider", "Seeker"])
def test_a_person_plays_a_role(finished, role, capsys, monkeypatch):
    typed = iter(["ace", "ace", "y", ""])
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    assert main(["play", str(finished), "--role", role]) == 0
    said = capsys.readouterr().out
    assert f"{role}: ace" in said
    assert f"reward of {role}: {1 if role == 'Hider' else -1:+g}" in said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["eval", "RUN", "--role", "Finder=base"], "error: --role: the program has no role Finder"),
        (["eval", "RUN", "--role", "Hider"], "error: --role: 'Hider' names no player"),
        (
            ["eval", "RUN", "--role", "Hider=smollm2-135m"],
            "error: --role: smollm2-135m is a mixture or a base model",
        ),
        (["play", "RUN"], "error: --role: is missing: the run plays a program"),
        (["eval", "nosuch"], "error: MODEL_OR_RUN: 'nosuch' is neither a run"),
        (["eval", "RUN@9"], "has no checkpoint of update 9"),
        (
            ["eval", "RUN", "--games", "20"],
            "error: --games: is for games, but a program is played. Leave it out, or name a game",
        ),
        (["eval", "RUN", "--nash-conv"], "error: --nash-conv: is for games"),
        (["play", "RUN", "--role", "Hider", "--seat", "0"], "error: --seat: is for games"),
    ],
)
def test_wrong_roles_and_runs_are_one_line(finished, arguments, line, capsys):
    assert main([one.replace("RUN", str(finished)) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
