"""The first process of a host: makes its device and its view of the file system, and lives as long as it.

    python inside.py DISK NUMBER CONTROL MTU [VISIBLE...]

It begins in namespaces of its own for mounts, network, processes and names. ``DISK`` becomes the root of the
file system. Of the machine it shows, read-only, the system's programs and libraries and the directories
``VISIBLE``. The device goes to whoever has the other end of the socket ``CONTROL``. When that is closed, this
process ends, and the kernel ends all processes of the host with it.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

SYSTEM = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
OF_ETC = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf")
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
MOST_HOSTS = 20
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def make_device(number: int, mtu: int) -> int:
    """Make the host's network device; return its other end."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
    call("ip", "link", "set", "lo", "up")
    call("ip", "addr", "add", f"10.77.0.{number}/24", "dev", "wire")
    call("ip", "link", "set", "wire", "mtu", str(mtu), "up")
    call("ip", "route", "add", "default", "dev", "wire")  # as on a machine; nothing is there
    return device


def make_root(disk: Path, visible: list[Path]) -> None:
    """Make the host's file system at ``disk``, and make it the root of everything."""
    for place in ("dev", "etc", "proc", "root", "sys", "tmp", "var/tmp"):
        (disk / place).mkdir(parents=True, exist_ok=True)
    call("mount", "--bind", disk, disk)  # a root must be a mount
    for name in SYSTEM:
        original = Path("/", name)
        if original.is_symlink():
            if not (disk / name).is_symlink():
                (disk / name).symlink_to(original.readlink())
        elif original.exists():
            show(original, disk)
    for directory in visible:
        show(directory, disk)
    for name in OF_ETC:
        copy(Path("/etc", name), disk / "etc" / name)
    call("mount", "-t", "proc", "proc", disk / "proc")
    call("mount", "-t", "sysfs", "-o", "ro", "sysfs", disk / "sys")
    make_devices(disk / "dev")
    (disk / "old").mkdir(exist_ok=True)
    os.chdir(disk)
    call("pivot_root", ".", "old")
    os.chroot(".")
    call("umount", "--lazy", "/old")
    Path("/old").rmdir()


def show(directory: Path, disk: Path) -> None:
    """Make a directory of the machine visible at the same path, read-only."""
    place = disk / directory.relative_to("/")
    if not place.exists():  # otherwise it is in one that is visible already
        place.mkdir(parents=True)
    if not any(place.iterdir()):
        call("mount", "-o", "bind,ro", directory, place)


def copy(original: Path, place: Path) -> None:
    """Copy a file or a directory if it exists, and is not there from an earlier start."""
    if place.exists():
        return
    if original.is_dir():
        shutil.copytree(original, place, symlinks=True)
    elif original.exists():
        shutil.copy(original, place)


def make_devices(place: Path) -> None:
    """Make the devices that programs need, and shared memory of the host's own."""
    call("mount", "-t", "tmpfs", "dev", place)
    for name in DEVICES:
        (place / name).touch()
        call("mount", "--bind", Path("/dev", name), place / name)
    (place / "fd").symlink_to("/proc/self/fd")
    (place / "shm").mkdir()
    call("mount", "-t", "tmpfs", "-o", "size=1g", "shm", place / "shm")


def call(*command: str | Path) -> None:
    """Run a command; its error ends this host."""
    subprocess.run(command, check=True)


def main() -> None:
    """Make the host, and wait for its end."""
    disk, number, control, mtu, *visible = sys.argv[1:]
    other = socket.socket(fileno=int(control))
    name = f"host{number}"
    socket.sethostname(name)
    device = make_device(int(number), int(mtu))
    make_root(Path(disk), [Path(one) for one in visible])
    names = [f"10.77.0.{one} host{one}" for one in range(1, MOST_HOSTS + 1)]
    own = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]  # as Debian has it: nobody else reaches that address
    Path("/etc/hosts").write_text("\n".join([*own, *names, ""]))
    Path("/etc/resolv.conf").write_text("")
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # the kernel then removes ended processes that nobody waits for
    socket.send_fds(other, [b"ready"], [device])
    os.close(device)
    other.recv(1)


if __name__ == "__main__":
    main()
