"""scripts/test-gpu without a GPU: everything at toy sizes, and a refusal."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300)


def test_every_check_and_measurement_runs_on_a_cpu():
    done = run("--device", "cpu", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("## ")]
    assert len(titles) == 5
    assert "| float32 | runs | in sections | 1.000000 |" in done.stdout
    assert "| tree | runs (chosen) |" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: torch finds no CUDA device here.")
