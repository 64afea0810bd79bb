"""docs/errors.md: every command in it is run and says exactly what the page says."""

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from bad_input_files import hold_run, make_files
from selfplay.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ROW = re.compile(r"\| (?P<what>[^|`]+) \| `(?P<command>selfplay [^`]+)` \| `(?P<line>error: [^`]+)` \|")
ROWS = [match.groupdict() for match in map(ROW.fullmatch, PAGE.read_text().splitlines()) if match]
BEGINNINGS = ("importing ", "loading ", "joining Ray ", "starting the actors", "note: ", "computing on ")
BEGINNINGS += ("run directory: ",)
STOPS = "## Fine-tuning runs that had to stop"
"""What follows is no wrong input; tests/test_finetune_stops.py makes it happen."""
HELD = ("runs/busy", "busy-jobs", "judged/analysis/prover_role_conformance")
PACKAGES = ("datasets", "wandb", "tensorboard", "fastapi", "uvicorn", "python_multipart", "textual", "vllm")
PACKAGES += ("cvxpy",)
IN_AN_ACTOR = "a layer that the model lacks, in an actor"
"""This row starts a whole run on Ray; tests/test_cluster_actor_errors.py has the errors of actors without."""


def _case(row):
    """Return the row as a parameter."""
    slow = row["what"] == IN_AN_ACTOR
    return pytest.param(row, id=row["what"], marks=[pytest.mark.slow] if slow else [])


@pytest.fixture
def files(tmp_path, monkeypatch, loopback):
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path)
    locks = [hold_run(tmp_path / name) for name in HELD]
    yield tmp_path
    for lock in locks:
        os.close(lock)


def test_the_page_has_rows_enough_and_no_line_that_is_not_a_row():
    page, _, _ = PAGE.read_text().partition(STOPS)
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.startswith("| what is wrong |")]
    assert len(ROWS) == len(lines) >= 25


@pytest.mark.parametrize("row", [_case(row) for row in ROWS])
def test_wrong_input_gets_its_one_line(row, files, capsys):
    for package in PACKAGES:
        if f"the package {package} is not" in row["line"] and importlib.util.find_spec(package):
            pytest.skip(f"{package} is installed here")
    if re.search("CUDA|GPUs? (is|are) requested", row["line"]) and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    before = _paths(files)
    assert main(shlex.split(row["command"])[1:]) == 2
    printed = capsys.readouterr()
    assert printed.err.replace(f"{files}/", "") == row["line"] + "\n"
    assert [line for line in printed.out.splitlines() if not line.startswith(BEGINNINGS)] == []
    assert _paths(files) == before


def _paths(folder):
    """Files and runs that are there, without the bytecode that Python keeps of files that it has run."""
    found = [*folder.iterdir(), *(folder / "runs").iterdir()]
    return sorted(path for path in found if path.name != "__pycache__")
