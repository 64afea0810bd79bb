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


def test_the_page_grows_a_part_at_a_time_and_what_it_has_is_not_measured_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    report = runpy.run_path(str(SCRIPT.parent / "gpu_report.py"))
    measured = []

    def measure(name, fails=False):
        measured.append(name)
        print(f"| {name} | {len(measured)} |")
        if fails:
            raise RuntimeError("no memory")

    def call(names, heading="# one GPU", fails=False):
        measured.clear()
        page = report["Report"](tmp_path / "page.md", heading)
        for name in names:
            part = report["Part"](name, f"Part {name}", lambda name=name: measure(name, fails))
            if not page.has(part):
                page.measure(part)
        return measured, page.failed(), (tmp_path / "page.md").read_text()

    assert call("ab", fails=True)[:2] == (["a", "b"], ["Part a", "Part b"])
    assert call("a")[:2] == (["a"], ["Part b"])
    again, failed, text = call("abc")
    assert (again, failed) == (["b", "c"], [])
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# one GPU",
        "## Part a",
        "## Part b",
        "## Part c",
    ]
    assert "| a | 1 |" in text
    assert call("abc")[0] == []
    assert call("abc", heading="# another GPU")[0] == ["a", "b", "c"]


@pytest.mark.slow  # the script is read and one section run by default above
def test_every_check_and_measurement_runs_on_a_cpu(monkeypatch, capsys, tmp_path):
    call = ("--device", "cpu", "--small", "--out", str(tmp_path / "page.md"))
    run(monkeypatch, *call)
    said = capsys.readouterr().out
    titles = [line for line in said.splitlines() if line.startswith("## ")]
    assert len(titles) == 7
    assert "| float32 | runs | in sections | 1.000000 |" in said
    assert "| tree | runs (chosen) |" in said
    assert "| 100% |" in said  # engine and generate begin alike
    run(monkeypatch, *call)
    assert capsys.readouterr().err == ""  # nothing is measured


def test_a_part_that_does_not_exist_is_named(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "swop", "--out", str(tmp_path / "page.md"))
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: there is no part swop. Name some of gradients, engine")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("error: torch finds no CUDA device here.")
