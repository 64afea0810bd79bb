"""Memory and CPU time of the processes that Ray has started for this one, read from Linux's ``/proc``."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

AGENTS = ("DashboardAgent", "RuntimeEnvAgent")
"""Processes of Ray itself whose titles look like those of workers."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process of Ray. ``name`` is an actor's class, ``IDLE``, or the program of one of Ray's daemons."""

    pid: int
    name: str
    is_worker: bool
    cpu_seconds: float


def ray_processes() -> list[Process]:
    """Return all processes below this one."""
    children: dict[int, list[int]] = defaultdict(list)
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and (stat := _stat(int(directory.name))):
            children[int(stat[1])].append(int(directory.name))
    found, below = [], list(children[os.getpid()])
    while below:
        pid = below.pop()
        below += children[pid]
        process = _process(pid)
        if process is not None:
            found.append(process)
    return found


def memory_mb() -> dict[str, float]:
    """Return MB by kind: ``workers`` as PSS, which divides shared pages among users; ``daemons`` as RSS."""
    total = {"workers": 0.0, "daemons": 0.0}
    for process in ray_processes():
        if process.is_worker:
            total["workers"] += _field(process.pid, "smaps_rollup", "Pss:")
        else:
            total["daemons"] += _field(process.pid, "status", "VmRSS:")
    return total


def cpu_seconds() -> dict[str, float]:
    """Return the CPU seconds so far by process name; ``daemons`` is Ray without its workers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for process in ray_processes():
        seconds[process.name if process.is_worker else "daemons"] += process.cpu_seconds
    return dict(seconds)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the third on; ``None`` if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _process(pid: int) -> Process | None:
    stat = _stat(pid)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return None
    if stat is None:
        return None
    title = command.removeprefix("ray::").split(".")[0]
    is_worker = command.startswith("ray::") and title not in AGENTS
    return Process(pid, title if is_worker else Path(command).name, is_worker, _cpu_seconds(stat))


def _cpu_seconds(stat: list[str]) -> float:
    """Return user and system time, including those of ended children."""
    return sum(map(int, stat[11:15])) / TICKS


def _field(pid: int, file: str, name: str) -> float:
    """Return a field given in kB as MB; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0.0
    return int(text.partition(name)[2].split()[0]) / 1024 if name in text else 0.0
