"""The dark and the light theme, and the choice between them by the terminal's background."""

import os
import re
import select
import sys
import termios
import time
import tty

from textual.theme import Theme

DARK = Theme(
    name="sparring-dark",
    primary="#5b9bf0",
    secondary="#3f7fe0",
    accent="#e0a03a",
    foreground="#d6dce4",
    background="#11151a",
    surface="#171c22",
    panel="#232a33",
    success="#2fa36b",
    warning="#d9962f",
    error="#d9534f",
    dark=True,
)
LIGHT = Theme(
    name="sparring-light",
    primary="#1d5fc4",
    secondary="#3f7fe0",
    accent="#a86a00",
    foreground="#1c2229",
    background="#fcfcfb",
    surface="#f4f5f6",
    panel="#e3e6ea",
    success="#2fa36b",
    warning="#d9962f",
    error="#d9534f",
    dark=False,
)

_ASK = b"\x1b]11;?\x1b\\\x1b[c"
"""Queries the background (OSC 11) and then the device attributes, to which every terminal replies."""
_BACKGROUND = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_LAST_ANSWER = re.compile(rb"\x1b\[\?[\d;]*c")


def has_light_terminal() -> bool:
    """Return whether the terminal at standard input has a light background."""
    return is_light(dict(os.environ), sys.stdin.fileno() if sys.stdin.isatty() else None)


def is_light(environment: dict[str, str], terminal: int | None) -> bool:
    """Return whether a terminal has a light background.

    The terminal's own reply decides, or else the variable COLORFGBG. Without either the answer is no.

    Args:
        environment: the environment variables.
        terminal: the terminal's file descriptor; ``None`` to skip the query.
    """
    answer = None
    if terminal is not None and environment.get("TERM") not in ("dumb", "linux"):
        answer = ask_background(terminal)
    if answer is not None:
        return answer > 0.5
    colours = environment.get("COLORFGBG", "").split(";")
    return colours[-1] in ("7", "15")


def ask_background(terminal: int, seconds: float = 1.0) -> float | None:
    """Query a terminal's background and return its lightness between 0 and 1, ``None`` without a reply.

    The lightness is the luma of Rec. 709: 0.2126 R + 0.7152 G + 0.0722 B.

    Args:
        terminal: a file descriptor, open for reading and writing.
        seconds: the longest time to wait. Terminals reply at once; the wait allows for slow connections.
    """
    try:
        before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal, termios.TCSANOW)
    except termios.error:
        return None
    try:
        os.write(terminal, _ASK)
        answer = _read_answer(terminal, time.monotonic() + seconds)
    except OSError:  # The descriptor was opened for reading only.
        return None
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
    match = _BACKGROUND.search(answer)
    if match is None:
        return None
    red, green, blue = (int(part, 16) / int("f" * len(part), 16) for part in match.groups())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _read_answer(terminal: int, until: float) -> bytes:
    answer = b""
    while not _LAST_ANSWER.search(answer):
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            break
        answer += os.read(terminal, 1024)
    return answer
