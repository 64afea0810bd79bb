"""Starting the process that trains a job. On a cluster, an actor takes its place."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from sparring.finetune.jobs.records import LOG_FILE

LAST_CHARACTERS = 2000


@dataclass(frozen=True)
class Crash:
    """Why a process that trains crashed, and whether something killed it."""

    reason: str
    killed: bool = False


Launch = Callable[[Path], Awaitable[Crash | None]]
"""Trains the job in a directory in a process of its own; returns why that crashed, if it did. The process
leaves ``outcome.json`` in the directory, and is killed if the call is cancelled."""


async def train_in_process(directory: Path) -> Crash | None:
    """Train the job in ``directory`` in a process of this machine; see ``worker``."""
    log = directory / LOG_FILE
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sparring.finetune.jobs.worker", str(directory)),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the server, which then ends this process
        )
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    if status == 0:
        return None
    if status < 0:
        return Crash(f"the process that trains was ended by signal {-status}", killed=True)
    lines = log.read_text(errors="replace")[-LAST_CHARACTERS:].split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Crash(said or f"the process that trains ended with status {status}")
