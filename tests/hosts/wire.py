"""The wire: a process that carries the packets between hosts, late, slowly or not at all.

Each host has a TUN device, whose other end is a file descriptor here. A packet that a host sends goes through
the host's way ``out``, and then through the receiver's way ``in``. A way has a delay, a loss, a rate with a
bounded queue, and can be cut. The process ends when its control socket is closed.
"""

import heapq
import json
import os
import random
import select
import socket
import sys
import time
from collections import Counter
from itertools import count
from typing import Any

AT_ONCE = 64
"""Packets that are taken from one host before the others have their turn."""
QUEUE_SECONDS = 0.2
"""How long a packet may wait for a way with a rate; one that would wait longer is lost: the queue is full."""
LARGEST = 65_536
SENDER, RECEIVER = 15, 19
"""Where the last bytes of the addresses are in an IPv4 packet."""
HAVE_PORTS = (6, 17)
"""TCP and UDP, whose packets begin with two ports."""


class Way:
    """One direction of a host's network.

    Attributes:
        delay: seconds that each packet takes.
        loss: probability that a packet is lost.
        rate: bits a second; 0 for no limit.
        cut: whether all packets are lost.
    """

    def __init__(self, seed: str) -> None:
        self.delay = 0.0
        self.loss = 0.0
        self.rate = 0.0
        self.cut = False
        self._rng = random.Random(seed)
        self._free = 0.0

    def leaves(self, now: float, size: int) -> float | None:
        """Return when a packet of ``size`` bytes that comes at ``now`` leaves; ``None`` if it is lost."""
        if self.cut or (self.loss and self._rng.random() < self.loss):
            return None
        if self.rate:
            begins = max(now, self._free)
            if begins - now > QUEUE_SECONDS:
                return None
            now = self._free = begins + 8 * size / self.rate
        return now + self.delay


class Wire:
    """See the module. A host's number is the last byte of its address."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._devices: dict[int, int] = {}
        self._ways: dict[tuple[int, str], Way] = {}
        self._late: list[tuple[float, int, tuple[str, ...], bytes]] = []
        self._numbers = count()
        self._packets: Counter[bytes] = Counter()
        self._bytes: Counter[bytes] = Counter()
        self._lost = 0

    def run(self) -> None:
        """Carry packets until the control socket is closed."""
        while True:
            hosts = {device: host for host, device in self._devices.items()}
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready, _, _ = select.select([self._control, *hosts], [], [], wait)
            for one in ready:
                if one is not self._control:
                    self._take(hosts[one])
                elif not self._obey():
                    return
            while self._late and self._late[0][0] <= time.monotonic():
                now, _, ways, packet = heapq.heappop(self._late)
                self._pass(packet, ways, now)

    def _obey(self) -> bool:
        """Do what the control socket asks for; return whether it is still open."""
        request, devices, _, _ = socket.recv_fds(self._control, LARGEST, 1)
        if not request:
            return False
        method, arguments = json.loads(request)
        answer = getattr(self, method)(*devices, **arguments)
        self._control.sendall(json.dumps(answer).encode() + b"\n")
        return True

    def join(self, device: int, host: int) -> None:
        """Connect a host by its device."""
        os.set_blocking(device, False)
        self._devices[host] = device
        for way in ("in", "out"):
            self._ways.setdefault((host, way), Way(f"{host} {way}"))

    def leave(self, host: int) -> None:
        """Let go of a host's device."""
        if host in self._devices:
            os.close(self._devices.pop(host))

    def change(self, host: int, way: str, **settings: Any) -> None:
        """Set attributes of a host's :class:`Way`, ``in`` or ``out``."""
        for name, value in settings.items():
            setattr(self._ways[host, way], name, value)

    def counts(self) -> dict[str, Any]:
        """Return the packets and bytes that arrived, by connection and direction, and how many were lost."""
        rows = [[*_ends(key), number, self._bytes[key]] for key, number in self._packets.items()]
        return {"arrived": rows, "lost": self._lost}

    def _take(self, host: int) -> None:
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self._devices[host], LARGEST)
            except (KeyError, BlockingIOError):  # it has left since its device had something, or has no more
                return
            except OSError:  # the host is gone
                self.leave(host)
                return
            if packet[0] >> 4 == 4 and packet[SENDER] == host:
                self._pass(packet, ("out", "in"), time.monotonic())

    def _pass(self, packet: bytes, ways: tuple[str, ...], now: float) -> None:
        """Let a packet through these ways; where it takes time, :meth:`run` goes on with it."""
        while ways:
            host = packet[SENDER if ways[0] == "out" else RECEIVER]
            leaves = self._ways[host, ways[0]].leaves(now, len(packet)) if host in self._devices else None
            ways = ways[1:]
            if leaves is None:
                self._lost += 1
                return
            if leaves > now:
                heapq.heappush(self._late, (leaves, next(self._numbers), ways, packet))
                return
        self._arrive(packet)

    def _arrive(self, packet: bytes) -> None:
        try:
            os.write(self._devices[packet[RECEIVER]], packet)
        except (KeyError, OSError):  # the host is gone, or its queue is full
            self._lost += 1
            return
        ends = packet[9:10] + packet[12:24]
        self._packets[ends] += 1
        self._bytes[ends] += len(packet)


def _ends(key: bytes) -> list[int]:
    """Return sender, its port, receiver and its port; the ports are 0 if the protocol has none."""
    ports = [int.from_bytes(key[at : at + 2], "big") if key[0] in HAVE_PORTS else 0 for at in (9, 11)]
    return [key[4], ports[0], key[8], ports[1]]


if __name__ == "__main__":
    Wire(socket.socket(fileno=int(sys.argv[1]))).run()
