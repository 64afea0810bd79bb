"""Measure contenders in turn, within one process and on one thread, and compare them within each round.

The speed of a shared machine changes from minute to minute, so only times taken next to each other are
compared: every round runs each contender once, and the figure is the median over rounds of the ratio within a
round.
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch


def pin_one_thread() -> None:
    """Compute on one thread."""
    torch.set_num_threads(1)


def interleave(
    contenders: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = perf_counter
) -> dict[str, list[float]]:
    """Run every contender once per round, in turn; returns seconds by contender and round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            gc.collect()
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return seconds


def ratio(slower: list[float], faster: list[float]) -> float:
    """Return the median over rounds of the first's seconds divided by the second's."""
    return median(left / right for left, right in zip(slower, faster, strict=True))


def peak_memory_mb(run: Callable[[], object]) -> float:
    """Return the peak resident memory of this process while ``run`` runs, in MB, including what is loaded.

    Linux only: the kernel records the peak and allows resetting it.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    run()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def resident_mb() -> float:
    """Return the current resident memory of this process in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
