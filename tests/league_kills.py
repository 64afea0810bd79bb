"""Train a league in a process of its own that kills itself (``kill -9``) at a place of choice.

    python tests/league_kills.py CONFIG RUN PLACE CALL

PLACE is a method of ``PLACES``; the process dies as its call number CALL returns.
"""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from sparring.config import load_config
from sparring.run.local_learners import LocalLearners
from sparring.run.serving import EmbeddedServing
from sparring.run.single_process import train

PLACES = {
    "update": LocalLearners,
    "freeze": EmbeddedServing,
    "start_again": LocalLearners,
    "keep": LocalLearners,
    "publish": EmbeddedServing,
}


def train_and_kill(config: Path, run: Path, place: str, call: int) -> None:
    """Run this file in a new process; it must die."""
    command = [sys.executable, __file__, str(config), str(run), place, str(call)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr


def acting(place: str, call: int, act: Callable[[Path], object]) -> Callable[..., Any]:
    """Return the method of a place that does ``act(run's directory)`` as its call number ``call`` returns."""
    method, calls = getattr(PLACES[place], place), [0]

    @functools.wraps(method)
    async def acts(self: Any, *arguments: object, **options: object) -> object:
        returned = await method(self, *arguments, **options)
        calls[0] += 1
        if calls[0] == call:
            act(self.directory.path)
        return returned

    return acts


if __name__ == "__main__":
    place = sys.argv[3]
    deadly = acting(place, int(sys.argv[4]), lambda _: os.kill(os.getpid(), signal.SIGKILL))
    setattr(PLACES[place], place, deadly)
    train(load_config(sys.argv[1], {}), Path(sys.argv[2]), Console(file=sys.stdout))
