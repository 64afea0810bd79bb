"""Processes that train jobs, forked from one that has imported everything: an import takes seconds.

They run ``main`` of ``sparring.finetune.jobs.worker`` as ``python -m`` does, and may be killed.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from sparring.finetune.jobs.launch import Crash

LOG = "worker.log"
LIMIT_SECONDS = 300.0


class News:
    """Counts what happens to jobs and their processes, so that a test waits for the next event."""

    def __init__(self) -> None:
        self.count = 0
        self._happened = threading.Condition()

    def tell(self) -> None:
        """Say that something has happened."""
        with self._happened:
            self.count += 1
            self._happened.notify_all()

    def after(self, count: int, limit: float = LIMIT_SECONDS) -> None:
        """Wait until more has happened than ``count``."""
        with self._happened:
            told = self._happened.wait_for(lambda: self.count > count, limit)
        assert told, "the jobs have not done in time what the test waits for"

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is looked at after each event."""
        latest = time.monotonic() + LIMIT_SECONDS
        count = self.count
        while not condition():
            self.after(count, latest - time.monotonic())
            count = self.count


NEWS = News()


class Forks:
    """The process that forks; it starts with the first job. :meth:`start` is a launch for ``finetune.jobs``.

    ``started`` are the ids of all processes, oldest first. Starts, ends and trained steps are news.
    """

    def __init__(self) -> None:
        self.started: list[int] = []
        self._asked = 0
        self._ended: dict[int, int] = {}

    async def start(self, directory: Path) -> Crash | None:
        """Train the job in ``directory``; see ``sparring.finetune.jobs.launch.Launch``."""
        assert self._process.stdin is not None
        place = self._asked
        self._asked += 1
        self._process.stdin.write(f"{directory}\n")
        self._process.stdin.flush()
        NEWS.until(lambda: len(self.started) > place)  # a process that has started is waited for or killed
        pid = self.started[place]
        try:
            await asyncio.to_thread(NEWS.until, lambda: pid in self._ended)
        finally:
            if pid not in self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        status = self._ended[pid]
        if os.WIFSIGNALED(status):
            return Crash(f"the process that trains was ended by signal {os.WTERMSIG(status)}", killed=True)
        return None if status == 0 else Crash((directory / LOG).read_text().strip().splitlines()[-1])

    @functools.cached_property
    def _process(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(process.kill)
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()
        return process

    def _read(self, told: Iterable[str]) -> None:
        for line in told:
            kind, pid, status = line.split()
            if kind == "started":
                self.started.append(int(pid))
            elif kind == "ended":
                self._ended[int(pid)] = int(status)
            NEWS.tell()


def serve() -> None:
    """Fork for every line of the standard input, and say when a child has ended."""
    import sparring.finetune.jobs.worker  # noqa: F401

    children: set[int] = set()
    child_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([0, child_ended], [], [])[0]
        if 0 in ready:
            asked = os.read(0, 2**16).decode()
            if not asked:
                return
            for directory in asked.splitlines():
                children.add(fork(Path(directory)))
        if child_ended in ready:
            os.read(child_ended, 2**16)
            for pid in list(children):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    children.discard(pid)
                    print("ended", pid, status, flush=True)


def fork(directory: Path) -> int:
    kept, _ = os.pipe()  # its other end stays open, so the worker does not end by itself
    pid = os.fork()
    if pid:
        print("started", pid, 0, flush=True)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    tell_steps(os.dup(1))
    os.dup2(kept, 0)
    log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from sparring.finetune.jobs.worker import main

        main(directory)
        os._exit(0)
    except BaseException:  # noqa: BLE001 (the process ends here)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def tell_steps(output: int) -> None:
    """Let each row of a job's metrics be told."""
    from sparring.learn.fine_tuning import job

    class Told(job.JsonlSink):
        def write(self, metrics):
            super().write(metrics)
            os.write(output, f"step {os.getpid()} 0\n".encode())

    job.JsonlSink = Told


if __name__ == "__main__":
    serve()
