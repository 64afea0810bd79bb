"""Commands in a terminal of their own, answered by the test, or in the background of a script."""

import io
import os
import pty
import select
import subprocess
import sys
import time

import pytest

SECONDS = 60.0


IN_CONTROL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"
"""Makes the terminal that of a session of its own, so that a typed Ctrl-C interrupts the command."""

IN_BACKGROUND = ("sh", "-c", 'trap \'\' INT; exec "$0" "$@"')
"""Goes before a command, which then ignores SIGINT, as with ``&`` in a script."""


def in_terminal(command: list[str], *replies: tuple[bytes, bytes], status: int = 0) -> bytes:
    """Run a command to its end in a terminal, and return what it showed.

    Args:
        command: the command, which must end within a minute of its last reply.
        replies: what to wait for and what to type then, one after the other; all of them must be shown.
        status: the status with which the command must end.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-c", IN_CONTROL, *command]
    session = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    left = list(replies)
    shown = b""
    latest = time.monotonic() + SECONDS
    while (wait := latest - time.monotonic()) > 0 and select.select([ours], [], [], wait)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        while left and left[0][0] in shown:
            os.write(ours, left.pop(0)[1])
            latest = time.monotonic() + SECONDS
    else:
        session.kill()
    os.close(ours)
    assert (session.wait(SECONDS), left) == (status, []), shown
    return shown


def pretend_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process take its streams for a terminal."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


class EndedInput(io.StringIO):
    """Standard input that may be read only a few times after its end, so that an endless loop fails."""

    ends = 0

    def readline(self, *arguments):
        line = super().readline(*arguments)
        self.ends += not line
        assert self.ends <= 3, "asked again after the end of the input"
        return line
