"""Play the cells of a ladder that are not complete, several at a time, each as a command of its own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress

from sparring.commands.ladder.cells import LadderCell
from sparring.core import InputError
from sparring.core.text import one_line

LOOK_SECONDS = 1.0
"""How often is looked whether the process of an earlier ladder has left a cell's run."""
STOPPED = "was stopped; give the same command again"
MOST_SHOWN = 1000
"""So many characters of a command's error are kept."""

Play = Callable[[Sequence[str], Sequence[int]], str]
"""Runs one command, which inherits these descriptors; returns why it failed, or an empty text."""
_PROGRAMS = {"sparring": (sys.executable, "-m", "sparring"), "python": (sys.executable,)}
"""What a command's first word means here: no other installation is used."""


def play_cells(
    cells: Sequence[LadderCell], jobs: int, done: Callable[[LadderCell, str], None], play: Play | None = None
) -> None:
    """Play cells, ``jobs`` at a time; ``done`` is told of each, and why it failed if it did.

    Interrupted, it lets the runs save their updates, and raises KeyboardInterrupt. A second interrupt kills
    them.
    """
    commands = _Commands()
    with ThreadPoolExecutor(jobs) as pool:
        started = {pool.submit(_play, cell, play or commands.play, commands.stopped): cell for cell in cells}
        try:
            for future in as_completed(started):
                done(started[future], future.result())
        except BaseException:
            _end(pool, commands)
            raise


def _end(pool: ThreadPoolExecutor, commands: "_Commands") -> None:
    """Ask all commands to end, and wait for them; a second Ctrl-C kills them."""
    try:
        pool.shutdown(wait=False, cancel_futures=True)
        commands.stop()
        pool.shutdown()
    except KeyboardInterrupt:
        commands.kill()


def _play(cell: LadderCell, play: Play, stopped: threading.Event) -> str:
    """Play a cell or go on with it; return why it did not end, or an empty text."""
    while cell.is_in_use():  # a ladder was killed, and its runs go on
        if stopped.wait(LOOK_SECONDS):
            return STOPPED
    try:
        if cell.is_done():
            return ""
    except InputError as error:
        return str(error)
    if not cell.words:
        return f"there is no file {cell.awaited} yet"
    with cell.locked() as locks:
        if problem := play(cell.words_now, locks):
            return problem
        cell.note_end()
    return "" if cell.is_done() else STOPPED


class _Commands:
    """The commands that run, each in a session of its own: a terminal's Ctrl-C reaches only this process."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def play(self, words: Sequence[str], inherited: Sequence[int]) -> str:
        """Run a command; return the last line of its errors, or an empty text."""
        try:
            with self._started(words, inherited) as process:
                if process is None:
                    return STOPPED
                _, said = process.communicate()
        except OSError as error:
            return f"{words[0]} cannot be started ({error.strerror})"
        if process.returncode == 0:
            return ""
        lines = [line for line in said.splitlines() if line.strip()]
        last = lines[-1][:MOST_SHOWN] if lines else f"it ended with status {process.returncode}"
        return one_line(last).removeprefix("error: ")

    @contextmanager
    def _started(
        self, words: Sequence[str], inherited: Sequence[int]
    ) -> Iterator[subprocess.Popen[str] | None]:
        with self._lock:
            if self.stopped.is_set():
                yield None
                return
            process = subprocess.Popen(
                [*_PROGRAMS.get(words[0], (words[0],)), *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=() if sys.platform == "win32" else inherited,
            )
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """Ask all to save their update and end, and start no more."""
        # In a shell's background, this process ignores SIGINT, and so do those that it starts.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        asked = signal.SIGTERM if ignored or sys.platform == "win32" else signal.SIGINT
        with self._lock:
            self.stopped.set()
            for process in self._running:
                process.send_signal(asked)

    def kill(self) -> None:
        """End all at once, with the processes that they have started."""
        with self._lock:
            for process in self._running:
                with suppress(ProcessLookupError):
                    if sys.platform == "win32":
                        process.kill()
                    else:
                        os.killpg(process.pid, signal.SIGKILL)
