"""The sandbox: runs Python programs that nobody trusts, and says how each ended.

Each program runs in a fresh copy of CPython, compiled to WebAssembly without any import: it has no files,
no network, no environment, no clock and no entropy, and nothing that it does reaches the next program or
this process. Its instructions are counted, its memory and what it returns are limited. So the same program
ends the same way, with the same bytes, every time. Only the order of a set of texts is that of one sandbox in
a cache: another machine's has another, as two processes of Python have.
"""

import asyncio
import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, LifoQueue
from threading import Timer
from typing import Any, Literal, cast, get_args

from sparring.core import InputError, TransientError
from sparring.programs.code.component import (
    bare_environment,
    check_sandbox,
    compiled_component,
    last_line,
    worker_command,
)

Kind = Literal["value", "error", "time", "memory", "output", "refused"]
"""How a program ends: with a value, by an error of its own, out of instructions, out of memory, with more
output than is kept, or stopped because it asked for what is not there (a file, a clock) or broke CPython."""
INSTRUCTIONS = 2_000_000_000
"""WebAssembly instructions of a program: about a second, or two million turns of a loop that adds."""
MEMORY = 64 * 2**20
"""Bytes of memory, in which CPython itself takes about 12 MiB."""
TO_READ = {"instructions": 10_000, "memory": 200}
"""What is given beside these for each character of a call and its arguments, about what reading it takes."""
ROOM = 16_384
"""Characters of a value, and of what is printed."""
LONGEST_SOURCE = 1_000_000
HANG_SECONDS = 300.0
"""After this, a process that does not answer is ended: far longer than the instructions take."""
MOST_WORKERS = 8


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes:
        kind: see :data:`Kind`.
        text: the value as a literal of Python, or the error with its type; else empty.
        printed: what was printed, also before an error.
        instructions: WebAssembly instructions that were used, the start of the program included.
    """

    kind: Kind
    text: str = ""
    printed: str = ""
    instructions: int = 0


class Sandbox:
    """Runs programs in processes of its own, which start when they are needed and end with this process.

    It may be used from any event loop and any number of episodes: no more than ``workers`` programs run at a
    time, and the others wait.

    Args:
        workers: the most processes; by default one for each core, at most 8.
        say: is told when the sandbox is made for the first time; by default standard error.

    Raises:
        InputError: the extra ``code`` is not installed.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        instructions: int = INSTRUCTIONS,
        memory: int = MEMORY,
        room: int = ROOM,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        check_sandbox("sandbox")
        self.instructions, self.memory, self.room = instructions, memory, room
        self._say = say
        self._process = os.getpid()
        count = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="sandbox")
        self._idle: LifoQueue[_Worker] = LifoQueue()
        atexit.register(self.close)

    async def run(self, source: str, call: str = "", arguments: str | None = None) -> Ending:
        """Run a program, and then evaluate ``call`` in its names.

        The value must be plain: None, numbers but NaN and complex ones, texts, bytes, and lists, tuples, sets
        and dictionaries of these. A value of a subclass is taken for one of these: a Counter is a dictionary.
        Its text has sets and dictionaries in order. Without a call, the program's name is ``__main__``.

        Args:
            source: the program.
            call: an expression, whose value is returned; without one, the value is None.
            arguments: literals with commas between them; the value is then that of ``call`` called with
                these. They are read before the program runs, so nothing in them is run.

        Raises:
            InputError: the sandbox cannot be made or started.
            TransientError: its process ended for another reason than the program, twice.
        """
        if len(source) + len(call) + len(arguments or "") > LONGEST_SOURCE:
            return Ending("error", f"SyntaxError: it has more than {LONGEST_SOURCE} characters")
        texts = [_text(source), _text(call), None if arguments is None else _text(arguments)]
        given = len(call) + len(arguments or "")
        return self._ending(await self._answer("run", [*texts, self.room], given))

    async def same(self, first: str, second: str, *, as_json: bool = False) -> bool:
        """Whether two texts are literals of values that are equal in Python, as 2 and 2.0 are.

        ``as_json``, a tuple is the same as a list and the key 1 as "1": JSON has no others. Both are read in
        a copy in which no program runs, so only plain values are compared.
        """
        if len(first) + len(second) > 4 * self.room:
            return False
        answer = await self._answer("same", [_text(first), _text(second), as_json])
        return answer.get("result") is True

    async def is_plain(self, text: str) -> bool:
        """Whether a text is what :meth:`run` returns for a plain value, and nothing that a program forged.

        It is read and written again in a copy in which no program runs.
        """
        ending = await self.run("", "lambda value: value", text)
        return ending.kind == "value" and ending.text == text

    def close(self) -> None:
        """End the processes; a program that runs is waited for. In a fork of this process, do nothing."""
        if os.getpid() != self._process:
            return
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()
        atexit.unregister(self.close)

    async def _answer(self, function: str, arguments: list[Any], given: int = 0) -> dict[str, Any]:
        request = {
            "function": function,
            "arguments": arguments,
            "instructions": self.instructions + given * TO_READ["instructions"],
            "memory": self.memory + given * TO_READ["memory"],
        }
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, json.dumps(request))

    def _ask(self, request: str) -> dict[str, Any]:
        """Send a request to an idle process. If that dies, send the request once more, to a new one: what
        ended the first may have ended all that were idle, and says nothing about the program."""
        for worker_of in (self._idle_worker, self._new_worker):
            worker = worker_of()
            answer = worker.ask(request)
            if answer is not None:
                self._idle.put(worker)
                return answer
            said = worker.close()
        raise TransientError(f"the sandbox's process ended twice before the program did ({said})")

    def _idle_worker(self) -> "_Worker":
        try:
            return self._idle.get_nowait()
        except Empty:
            return self._new_worker()

    def _new_worker(self) -> "_Worker":
        """Start a process. If it does not start, the component may be damaged, or compiled by another host
        for what this one's processor lacks: it is compiled anew, once."""
        compiled = compiled_component(self._say)
        tried = compiled.stat()
        try:
            return _Worker(compiled)
        except InputError:
            return _Worker(compiled_component(self._say, unusable=tried))

    def _ending(self, answer: dict[str, Any]) -> Ending:
        used = answer.get("instructions", 0)
        if "stopped" in answer:
            return Ending(answer["stopped"], instructions=used)
        kind, text, printed = answer["result"]
        if kind not in get_args(Kind):
            return Ending("refused", instructions=used)
        if len(text) > self.room or len(printed) > 2 * self.room:
            return Ending("output", instructions=used)
        return Ending(cast(Kind, kind), text, printed, used)


class _Worker:
    """One process that runs programs, one after the other."""

    def __init__(self, compiled: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the process
        self.process = subprocess.Popen(
            worker_command(compiled),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=bare_environment(),
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the run, which may finish what it does
        )
        ready = self._line()
        if ready.strip() != "ready":
            problem = f"its process did not start with the component in the cache ({self.close()})"
            raise InputError("sandbox", problem, f"Delete {compiled.parent}, so that it is made again")

    def ask(self, request: str) -> dict[str, Any] | None:
        """Return the answer to a request; ``None`` if the process died or had to be ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except OSError:
            return None
        line = self._line()
        return cast(dict[str, Any], json.loads(line)) if line.endswith("\n") else None

    def _line(self) -> str:
        assert self.process.stdout is not None
        timer = Timer(HANG_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def close(self) -> str:
        """End the process, and return the last line of its errors."""
        self.process.kill()
        self.process.communicate()
        with self._errors:
            self._errors.seek(0)
            return last_line(self._errors.read().decode("utf-8", "replace"))


def _text(text: str) -> str:
    """Return a text without halves of characters, which WebAssembly's texts cannot have."""
    return text.encode("utf-8", "replace").decode()


@cache
def shared_sandbox() -> Sandbox:
    """Return the sandbox of this process; a fork of it has another, because threads are not copied."""
    return Sandbox()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=shared_sandbox.cache_clear)
