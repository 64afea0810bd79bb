"""A host: starts it, runs commands in it, reads its disk and kills it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DISKS = "/dev/shm"
"""Where the hosts' disks are in the wire's view of the file system: a tmpfs that nobody else sees."""
HOME = "/root"
"""The home directory in a host, in which commands start."""
APART = ("--mount", "--uts", "--ipc", "--net", "--pid")
SECONDS = 300.0


class Host:
    """One host.

    Args:
        number: its number, the last byte of its address.
        wire: id of the wire's process.
        mtu: bytes of the largest packet.

    Attributes:
        address: its address.
        device: the other end of its network device, for the wire.
        first: id of its first process.
        disk: the root of its file system, as this process sees it; it outlives the host.
    """

    def __init__(self, number: int, wire: int, mtu: int) -> None:
        self.number = number
        self.address = f"10.77.0.{number}"
        self.disk = Path(f"/proc/{wire}/root{DISKS}/host{number}")
        self._control, other = socket.socketpair()
        with other:
            enter = ["nsenter", f"--target={wire}", "--mount", "unshare", *APART, "--fork", "--kill-child"]
            inside = [sys.executable, HERE / "inside.py", f"{DISKS}/host{number}", str(number)]
            self._process = subprocess.Popen(
                [*enter, *inside, str(other.fileno()), str(mtu), *map(str, visible_directories())],
                pass_fds=[other.fileno()],
            )
        self._control.settimeout(SECONDS)
        ready, devices, _, _ = socket.recv_fds(self._control, 16, 1)
        if not ready:
            self.kill()
            raise RuntimeError(f"host {number} did not start")
        self.device = devices[0]
        self.first = _child_of(self._process.pid)

    @property
    def home(self) -> Path:
        """The home directory, on the host's disk as this process sees it."""
        return self.disk / HOME.lstrip("/")

    def start(self, *command: str | Path, **options: Any) -> "Popen":
        """Start a command in this host's home directory; ``options`` are those of Popen.

        Its environment is small and the same everywhere; ``env`` adds to it.
        """
        environment = environment_of_hosts() | options.pop("env", {})
        enter = ["nsenter", f"--target={self.first}", *APART, "env", f"--chdir={HOME}"]
        return Popen([*enter, *map(str, command)], env=environment, text=True, **options)

    def run(self, *command: str | Path, seconds: float = SECONDS, **options: Any) -> str:
        """Run a command in this host; return what it printed.

        Raises:
            CalledProcessError: it failed.
            TimeoutExpired: it took longer than ``seconds``.
        """
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, said)
        return said

    def kill(self) -> None:
        """Kill all processes of this host at once, as if its power failed."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class Popen(subprocess.Popen[str]):
    """A process in a host, which is a child of the process that entered it."""

    def kill(self) -> None:
        """Kill the process in the host; the one that entered ends with it."""
        if self.poll() is None and (child := _child_of(self.pid)):
            os.kill(child, signal.SIGKILL)
        super().kill()


def _child_of(process: int) -> int | None:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else None


def visible_directories() -> list[Path]:
    """Return the directories from which this interpreter imports, outermost first, and the clone."""
    places = map(Path, (ROOT, sys.prefix, sys.base_prefix, *sys.path))
    there = {place for place in places if place.is_absolute() and place.is_dir()}
    return sorted(place for place in there if not there & set(place.parents))


def environment_of_hosts() -> dict[str, str]:
    """Return the environment of every command in a host, which has nothing of this process's."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
