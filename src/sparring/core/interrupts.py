"""SIGTERM, which ends a command as Ctrl-C does."""

import signal
import threading
from types import FrameType


def interrupt_by_sigterm() -> None:
    """Let SIGTERM do in this process what Ctrl-C does, also where a shell has started it in the background
    and it ignores SIGINT. Not the main thread: nothing happens, as no other may set a handler.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    of_ctrl_c = signal.getsignal(signal.SIGINT)  # the handler of asyncio or a server, while one runs
    (of_ctrl_c if callable(of_ctrl_c) else signal.default_int_handler)(number, frame)
