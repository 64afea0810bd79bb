"""``selfplay tournament``, here or in a process of its own that is killed (``kill -9``)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from selfplay.cli.main import main

COMMAND = [sys.executable, "-c", "from selfplay.cli.main import run; run()", "tournament"]


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
