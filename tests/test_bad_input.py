"""Every command of tests/errors.txt is run and says exactly its line."""

import importlib.util
import os
import re
import shlex

import pytest
import torch

from bad_input_files import hold_run, make_files
from error_page import PAGE, examples, page
from sparring.cli.main import main

BEGINNINGS = ("importing ", "loading ", "joining Ray ", "starting the actors", "note: ", "computing on ")
BEGINNINGS += ("run directory: ",)
HELD = ("runs/busy", "busy-jobs", "judged/analysis/prover_role_conformance")
PACKAGES = ("datasets", "wandb", "tensorboard", "fastapi", "uvicorn", "python_multipart", "textual", "vllm")
PACKAGES += ("cvxpy", "pyarrow", "reasoning_gym", "verifiers")
ON_RAY = ("a layer that the model lacks, in an actor", "more GPUs than the cluster has")
"""These examples start Ray; test_cluster_actor_errors.py and test_cluster_placement.py have others."""


def _case(example):
    """Return the example as a parameter."""
    slow = example.what in ON_RAY
    return pytest.param(example, id=example.what, marks=[pytest.mark.slow] if slow else [])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of all examples, of which no command changes any."""
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    locks = [hold_run(folder / name) for name in HELD]
    yield folder
    for lock in locks:
        os.close(lock)


@pytest.fixture
def files(made, monkeypatch, loopback):
    monkeypatch.chdir(made)
    return made


def test_the_page_is_made_of_the_examples():
    assert PAGE.read_text() == page(), "run: python tests/error_page.py > docs/errors.md"


@pytest.mark.parametrize("example", [_case(example) for example in examples()])
def test_wrong_input_gets_its_one_line(example, files, capsys):
    for package in PACKAGES:
        if f"the package {package} is not" in example.line and importlib.util.find_spec(package):
            pytest.skip(f"{package} is installed here")
    if re.search("CUDA|GPUs? (is|are) requested", example.line) and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    before = _paths(files)
    assert main(shlex.split(example.command)[1:]) == 2
    printed = capsys.readouterr()
    assert printed.err.replace(f"{files}/", "") == example.line + "\n"
    assert [line for line in printed.out.splitlines() if not line.startswith(BEGINNINGS)] == []
    assert _paths(files) == before


def _paths(folder):
    """Files and runs that are there, without the bytecode that Python keeps of files that it has run."""
    found = [*folder.iterdir(), *(folder / "runs").iterdir()]
    return sorted(path for path in found if path.name != "__pycache__")
