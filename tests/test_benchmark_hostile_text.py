"""The benchmark of hostile text still reaches every place that it attacks."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "hostile_text.py"


@pytest.mark.slow
def test_a_round_of_hostile_text_through_every_place_finds_nothing():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--minutes", "0.001", "--seed", "0"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for place in ("prompts", "play", "errors", "report", "watch", "server"):
        assert f"\n| {place} |" in done.stdout
