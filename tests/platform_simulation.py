"""Run commands as on a system without POSIX: python tests/platform_simulation.py [COMMAND...]

Libraries are imported first. Then the modules and names that only POSIX has are gone, ``sys.platform`` is
"win32", and every module of the package is imported again. It prints the modules that fail.
"""

import importlib
import os
import pkgutil
import shlex
import signal
import sys
import types

import sparring

MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "readline")
OF_OS = ("fork", "forkpty", "killpg", "setsid", "sysconf", "getuid", "geteuid", "getpgid", "wait3")
OF_OS += ("O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "mkfifo")
OF_SIGNAL = ("SIGKILL", "SIGPIPE", "SIGHUP", "SIGUSR1", "SIGALRM")


class Locking(types.ModuleType):
    """``msvcrt`` as far as it locks: one process, in which nobody else holds a lock."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    @staticmethod
    def locking(descriptor: int, mode: int, count: int) -> None:
        """Lock as many bytes from the file's position."""
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > 0
        assert mode in (0, 1, 2)
        assert count == 1


def import_all() -> dict[str, str]:
    """Import every module; return the reasons of those that fail."""
    failed = {}
    for module in pkgutil.walk_packages(sparring.__path__, "sparring.", onerror=failed.get):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                failed[module.name] = str(error)
    return failed


def forget_posix() -> None:
    """Take away what other systems lack, and the package's modules, which know what is there."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sparring"]:
        del sys.modules[name]
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for owner, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    sys.modules["msvcrt"] = Locking("msvcrt")
    sys.platform = "win32"


if __name__ == "__main__":
    before = import_all()
    forget_posix()
    after = import_all()
    print({name: reason for name, reason in after.items() if name not in before} or "all are imported")
    from sparring.cli.main import main

    for command in sys.argv[1:]:
        print(command.split()[0], main(shlex.split(command)))
