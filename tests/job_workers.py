"""Processes that train jobs, forked from one that has imported everything: an import takes seconds.

They run ``main`` of ``sparring.finetune.jobs.worker`` as ``python -m`` does, and may be killed.
"""

import asyncio
import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from sparring.finetune.jobs.launch import Crash

LOG = "worker.log"


class Forks:
    """The process that forks. :meth:`start` is a launch for ``sparring.finetune.jobs``.

    ``started`` are the ids of all processes, oldest first.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.kill)
        self.started: list[int] = []
        self._asked = 0
        self._ended: dict[int, int] = {}
        threading.Thread(target=self._read, daemon=True).start()

    async def start(self, directory: Path) -> Crash | None:
        """Train the job in ``directory``; see ``sparring.finetune.jobs.launch.Launch``."""
        assert self._process.stdin is not None
        place = self._asked
        self._asked += 1
        self._process.stdin.write(f"{directory}\n")
        self._process.stdin.flush()
        while len(self.started) <= place:
            time.sleep(0.005)  # a process that has started is always waited for or killed
        pid = self.started[place]
        try:
            while pid not in self._ended:
                await asyncio.sleep(0.01)
        finally:
            if pid not in self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        status = self._ended[pid]
        if os.WIFSIGNALED(status):
            return Crash(f"the process that trains was ended by signal {os.WTERMSIG(status)}", killed=True)
        return None if status == 0 else Crash((directory / LOG).read_text().strip().splitlines()[-1])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, pid, status = line.split()
            if kind == "started":
                self.started.append(int(pid))
            else:
                self._ended[int(pid)] = int(status)


def serve() -> None:
    """Fork for every line of the standard input."""
    from sparring.finetune.jobs.worker import main

    children: set[int] = set()
    while True:
        if select.select([0], [], [], 0.02)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            directory = Path(line.rstrip("\n"))
            kept, _ = os.pipe()  # its other end stays open, so the worker does not end by itself
            pid = os.fork()
            if pid == 0:
                os.dup2(kept, 0)
                log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                try:
                    main(directory)
                    os._exit(0)
                except BaseException:  # noqa: BLE001 (the process ends here)
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
            children.add(pid)
            print("started", pid, 0, flush=True)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                print("ended", pid, status, flush=True)


if __name__ == "__main__":
    serve()
