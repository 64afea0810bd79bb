"""``sparring tournament``, here or in a process of its own that is killed (``kill -9``)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.cli.main import main
from sparring.population import meta_strategies

COMMAND = [sys.executable, "-c", "from sparring.cli.main import run; run()", "tournament"]


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """Solve few matrices: only the ranges of shares depend on their number, and they take most time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_strategies, "RESAMPLES", 4)
        yield


def play(out: Path, *arguments: object, status: int = 0) -> None:
    """Run the command, and expect that it ends with this status."""
    words = ["tournament", *map(str, arguments), "--env", "kuhn_poker", "--out", str(out)]
    assert main(words) == status


def payoffs(out: Path) -> dict:
    return json.loads((out / "payoffs.json").read_text())


def kill_when_it_has(games: int, out: Path, arguments: list[str]) -> bool:
    """Run the command until its log has so many games, and kill it; return whether it was still at work.

    Nobody reads what it prints.
    """
    log = out / "games.jsonl"
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    while process.poll() is None:
        if log.is_file() and log.read_bytes().count(b"\n") >= games:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.02)
    return False
