"""What is only on some systems is used only where a file is listed here."""

import errno
import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from doc_pages import ROOT
from tiny_models import roomy_model

SOURCE = ROOT / "src" / "sparring"
ON_SOME_SYSTEMS = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "readline", "msvcrt", "winreg"}
IMPORTS = {"core/locks.py": {"fcntl", "msvcrt"}}
ASKS_WHICH = {
    "cluster/view.py",
    "commands/ladder/running.py",
    "core/files.py",
    "core/locks.py",
    "programs/code/sandbox.py",
    "run/trainer.py",
}
"""Files that do something else on Windows."""
PATHS = {
    "commands/ladder/results.py": {"/proc/cpuinfo"},
    "learn/memory.py": {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
}
"""Files that name paths of Linux; each works where they do not exist."""


def found(pattern):
    """Return what a pattern finds in each file of the source, for the files where it finds something."""
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    return {name: ones for name, text in files.items() if (ones := set(re.findall(pattern, text, re.M)))}


def test_what_some_systems_lack_is_imported_asked_for_and_named_only_where_it_is_listed():
    assert found(rf"^\s*(?:import|from) ({'|'.join(ON_SOME_SYSTEMS)})\b") == IMPORTS
    assert set(found(r"sys\.platform")) == ASKS_WHICH
    assert found(r"[\"'](/(?:proc|sys|dev|tmp)\b[^\"']*)") == PATHS


@pytest.mark.slow
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_every_name_is_there_on_every_system(system, tmp_path):
    """The types of the standard library say which names it has where."""
    words = ["--platform", system, "--cache-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "mypy", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_without_what_windows_lacks_every_module_is_imported_and_a_run_trains(tmp_path):
    run = f"--model.name {roomy_model()} --learning.steps 2 --collection.games_per_step 4 --lora.rank 2"
    commands = [f"train quickstart {run} --evaluation.games 4 --name here", "eval here --games 4", "runs"]
    script = Path(__file__).with_name("platform_simulation.py")
    done = subprocess.run(
        [sys.executable, script, *commands], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    lines = done.stdout.splitlines()
    assert "all are imported" in lines, done.stdout + done.stderr
    assert {"train 0", "eval 0", "runs 0"} <= set(lines)


class OtherLocks(types.ModuleType):
    """``msvcrt`` as far as it locks; a lock belongs to a descriptor. A ``disk`` may have none."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2
    held: dict
    disk = True

    def locking(self, descriptor, mode, count):
        if not self.disk:
            raise OSError(errno.ENOLCK, "No locks available")
        place = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR), count)
        if self.held.setdefault(place, descriptor) != descriptor:
            raise PermissionError(13, "Permission denied")
        if mode == self.LK_UNLCK:
            del self.held[place]


@pytest.fixture
def windows():
    other = OtherLocks("msvcrt")
    other.held = {}
    return other


@pytest.fixture(params=[sys.platform, "win32"])
def locks(request, windows, monkeypatch):
    """The locks of this system, and those of Windows over a stand-in."""
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setattr(sys, "platform", request.param)
    spec = importlib.util.spec_from_file_location("locks_of_a_system", SOURCE / "core" / "locks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.undo()
    return module


@pytest.mark.parametrize("locks", ["win32"], indirect=True)
def test_a_disk_without_locks_is_an_error_and_no_lock_of_another(locks, windows, tmp_path):
    windows.disk = False
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="No locks available"):
        locks.lock(file.fileno(), wait=False)
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="No locks available"):
        locks.is_held(file.fileno())


def test_a_lock_keeps_others_out_and_moves_nobodys_place_in_the_file(locks, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with path.open("r+b", buffering=0) as one, path.open("r+b", buffering=0) as other:
        one.seek(3)
        other.seek(5)
        assert not locks.is_held(other.fileno())
        locks.lock(one.fileno(), wait=False)
        assert locks.is_held(other.fileno())
        with pytest.raises(BlockingIOError):
            locks.lock(other.fileno(), wait=False)
        assert (one.read(1), other.read(1)) == (b"3", b"5")
