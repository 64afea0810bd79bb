"""A network of hosts: starts them and the wire between them, and removes everything at its end.

Nothing has a name outside of processes: namespaces, mounts, devices and disks disappear with the last process
that uses them, and every process ends when this one does, even if it is killed.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

from hosts.host import DISKS, HERE, SECONDS, Host

TOOLS = ("ip", "mount", "nsenter", "pivot_root", "umount", "unshare")


def why_not() -> str | None:
    """Return why there can be no hosts on this machine; ``None`` if there can."""
    if sys.platform != "linux":
        return "hosts are made of Linux namespaces"
    if os.geteuid() != 0:
        return "only root can make hosts"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need iproute2 and util-linux: there is no {', '.join(missing)}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "hosts need the device /dev/net/tun"
    return None


class Network:
    """Hosts 1 to ``hosts``, at 10.77.0.1 and so on, and the wire between them.

    Args:
        hosts: their number.
        mtu: bytes of the largest packet.

    Attributes:
        hosts: those that run, by number.
        wire: id of the wire's process.
    """

    def __init__(self, hosts: int, mtu: int = 1500) -> None:
        self._mtu = mtu
        self.hosts: dict[int, Host] = {}
        self._control, other = socket.socketpair()
        self._control.settimeout(SECONDS)
        self._answers = self._control.makefile("r")
        mounted = f'mount -t tmpfs disks {DISKS} && exec "$@"'
        wire = [sys.executable, str(HERE / "wire.py"), str(other.fileno())]
        with other:
            self._wire = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", mounted, "sh", *wire], pass_fds=[other.fileno()]
            )
        self.wire = self._wire.pid
        try:
            self._ask("counts")
            for number in range(1, hosts + 1):
                self.start(number)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, number: int) -> Host:
        """Return a host that runs."""
        return self.hosts[number]

    def start(self, number: int) -> Host:
        """Start a host; if it ran before, its disk is as it was."""
        host = self.hosts[number] = Host(number, self.wire, self._mtu)
        self._ask("join", [host.device], host=number)
        os.close(host.device)
        return host

    def kill(self, number: int) -> None:
        """Kill all processes of a host at once, as if its power failed."""
        self.hosts.pop(number).kill()
        self._ask("leave", host=number)

    def change(self, number: int, ways: tuple[str, ...] = ("in", "out"), **settings: Any) -> None:
        """Change a host's network: ``delay`` in seconds, ``loss`` from 0 to 1, ``rate`` in bits/s, ``cut``.

        Args:
            ways: what the host receives (``in``), sends (``out``), or both.
        """
        for way in ways:
            self._ask("change", host=number, way=way, **settings)

    def counts(self) -> dict[str, Any]:
        """Return ``arrived`` (sender, its port, receiver, its port, packets, bytes) and ``lost`` packets."""
        counts: dict[str, Any] = self._ask("counts")
        return counts

    def close(self) -> None:
        """Kill all hosts, then the wire. Nothing is left."""
        for host in self.hosts.values():
            host.kill()
        self.hosts.clear()
        self._answers.close()
        self._control.close()
        self._wire.wait()

    def _ask(self, method: str, devices: list[int] | None = None, **arguments: Any) -> Any:
        socket.send_fds(self._control, [json.dumps([method, arguments]).encode()], devices or [])
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the wire has ended")
        return json.loads(answer)
