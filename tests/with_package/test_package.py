"""The wheel that was built from the sdist, installed and used outside the clone."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import short_game
from doc_pages import ROOT
from sparring.config import preset_names, recipe_names
from tiny_models import roomy_model

COMMAND = Path(sys.executable).with_name("sparring")


def done(words, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [COMMAND, *words.split()], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_every_file_of_the_source_is_installed():
    source = ROOT / "src"
    files = {path.relative_to(source) for path in (source / "sparring").rglob("*") if path.is_file()}
    wanted = {str(path) for path in files if "__pycache__" not in path.parts}
    assert {path.rpartition(".")[2] for path in wanted} >= {
        "py",
        "toml",
        "json",
        "jsonl",
        "html",
        "js",
        "typed",
    }
    assert wanted <= {str(path) for path in importlib.metadata.files("sparring")}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_start(name, tmp_path):
    assert json.loads(done(f"train {name} --validate --json", tmp_path)) == {"problems": []}


def test_recipes_are_found_by_name(tmp_path):
    assert len(recipe_names()) > 20
    done(f"train quickstart --recipe {recipe_names()[0]} --validate", tmp_path)


def test_games_a_run_its_tasks_and_its_report(tmp_path):
    assert "TicTacToe-v0" in done("envs", tmp_path)
    assert "$defs" in json.loads(done("config schema", tmp_path))
    small = "--learning.steps 1 --collection.games_per_step 4 --lora.rank 2 --evaluation.games 4"
    done(f"train quickstart --model.name {roomy_model()} {small} --name here", tmp_path)
    done("eval here --task arithmetic --questions 2", tmp_path)
    done("report here", tmp_path)
    assert "<html" in (tmp_path / "runs" / "here" / "report.html").read_text()


def test_the_wheel_of_an_exported_package_has_the_files_of_its_configuration(tmp_path):
    (tmp_path / "short_game.py").write_text(Path(short_game.__file__).read_text())
    (tmp_path / "own.toml").write_text('[[envs]]\nid = "short_game.py:Talk"\n')
    done("export own.toml talk-game --verifiers", tmp_path)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", "wheels", "./talk-game"]
    subprocess.run(pip, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    (wheel,) = (tmp_path / "wheels").glob("talk_game-*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert {"talk_game/config.toml", "talk_game/files/0/short_game.py"} < {*files.namelist()}
