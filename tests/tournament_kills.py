"""``selfplay tournament`` in a process of its own, which is killed (``kill -9``) in the middle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-c", "from selfplay.cli.main import run; run()", "tournament"]


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
