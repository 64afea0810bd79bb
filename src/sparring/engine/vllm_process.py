"""Keeps the processes that vLLM starts with the process of the engine, their owner: none outlives it, and
Ctrl-C, which a terminal sends to all of them, reaches only the owner."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess

OWNER = "SPARRING_VLLM_OWNER"
"""The environment variable with the owner's number, which the processes inherit."""


def own_processes() -> None:
    """Become the owner of the processes that vLLM is about to start."""
    os.environ[OWNER] = str(os.getpid())


def stay_with_owner() -> None:
    """Tie this process to its owner, if it has one; vLLM's plugin calls it in each of vLLM's processes."""
    parent = multiprocessing.parent_process()
    if parent is None or os.environ.get(OWNER) in (None, str(os.getpid())):
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # vLLM would wait for whom it answers
