"""scripts/test-gpu without a GPU: everything at toy sizes, and a refusal."""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu_check.py"


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Restore the number of threads, which the quickstart in the script measures and sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the script in this process."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_handover_is_measured_on_a_cpu(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = runpy.run_path(str(SCRIPT))
    ((adapters, median, most),) = script["measure_handover"]("cpu", True)
    assert adapters == str(script["ADAPTERS"])
    assert 0 < float(median) <= float(most)


@pytest.mark.slow  # the script is read and one section run by default above
def test_every_check_and_measurement_runs_on_a_cpu(monkeypatch, capsys):
    run(monkeypatch, "--device", "cpu", "--small")
    said = capsys.readouterr().out
    titles = [line for line in said.splitlines() if line.startswith("## ")]
    assert len(titles) == 5
    assert "| float32 | runs | in sections | 1.000000 |" in said
    assert "| tree | runs (chosen) |" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("error: torch finds no CUDA device here.")
