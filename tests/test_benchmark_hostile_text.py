"""The benchmark of hostile text still reaches every place that it attacks."""

import runpy
import sys
from pathlib import Path

import pytest

import hostile_text  # noqa: F401 - the script has the same name, and imports this one

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "hostile_text.py"


def test_a_round_of_hostile_text_through_every_place_finds_nothing(monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--minutes", "0.001", "--seed", "0"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr()
    assert ended.value.code == 0, said.out + said.err
    for place in ("prompts", "play", "errors", "report", "watch", "server"):
        assert f"\n| {place} |" in said.out
