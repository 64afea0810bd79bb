"""The notebooks run from their first cell to their last, with a tiny model."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from doc_pages import ROOT
from tiny_models import roomy_model

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
SMALL = "--collection.games_per_step 8 --evaluation.games 4 --lora.rank 2 --model.threads 1"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("marimo") is None, reason="needs the extra notebooks")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_a_notebook_runs_to_its_last_cell(notebook, tmp_path):
    shutil.copytree(roomy_model(), tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--updates", "2", "--small", SMALL]
    done = subprocess.run(
        [sys.executable, notebook, *words], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs").glob("notebook-*/report.html"))
