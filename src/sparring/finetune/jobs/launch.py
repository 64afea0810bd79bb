"""Start the process that trains a job. On a cluster, an actor takes its place: ``cluster/server/workers``."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparring.finetune.jobs.records import LOG_FILE

LAST_CHARACTERS = 2000


@dataclass(frozen=True)
class Crash:
    """Why a process that trains crashed, and whether something killed it."""

    reason: str
    killed: bool = False


class Worker(Protocol):
    """A process that trains one job and leaves ``outcome.json`` in the job's directory."""

    async def wait(self) -> Crash | None:
        """Wait for its end; return why it crashed, if it did."""

    def kill(self) -> None:
        """End it at once."""


Launch = Callable[[Path], Awaitable[Worker]]
"""Starts the worker of the job in a directory."""


class LocalWorker:
    """A worker on this machine; see ``worker``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, directory: Path) -> "LocalWorker":
        """Start the worker of the job in ``directory``."""
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
        return cls(process, log)

    async def wait(self) -> Crash | None:
        """Wait for the end; see :class:`Worker`."""
        status = await self._process.wait()
        if status == 0:
            return None
        if status < 0:
            return Crash(f"the process that trains was ended by signal {-status}", killed=True)
        lines = self._log.read_text(errors="replace")[-LAST_CHARACTERS:].split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return Crash(said or f"the process that trains ended with status {status}")

    def kill(self) -> None:
        """End the process, if it has not ended."""
        if self._process.returncode is None:
            self._process.kill()
