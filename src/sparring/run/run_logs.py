"""The files of a run that only grow in number or at their end, by size and hash, as a checkpoint knows them.

A run trains on none of them, but it ends and keeps its best adapters by its evaluations, and it continues
``metrics.jsonl`` and ``standings.jsonl`` where the checkpoint was.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from sparring.core.errors import DamagedState
from sparring.run.run_layout import growing_files, log_files
from sparring.run.saved_state import Logs


class RunLogs:
    """The logs of a run; a file that has not changed is read once."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._known: dict[tuple[str, int, int], str] = {}

    def state(self) -> Logs:
        """Return the files as they are."""
        found = {}
        for path in (*growing_files(self.run), *log_files(self.run)):
            status, name = path.stat(), path.relative_to(self.run).as_posix()
            key = (name, status.st_size, status.st_mtime_ns)
            if key not in self._known:
                self._known[key] = _hash_of(path, status.st_size)
            found[name] = (status.st_size, self._known[key])
        return found


def check_logs(run: Path, logs: Logs, deciding: bool) -> None:
    """Check that a run can continue from a checkpoint that knows these logs.

    Args:
        run: the run's directory.
        logs: the files as the checkpoint knows them.
        deciding: whether evaluations decide when the run ends, or which adapters it keeps.

    Raises:
        DamagedState: a file that grows is shorter, or an evaluation that decides has changed.
    """
    growing = {path.name for path in growing_files(run)}
    for name, (size, _) in logs.items():
        has = (run / name).stat().st_size if name in growing else 0
        if "/" not in name and has < size:
            problem = f"{run / name} has {has} bytes, but the checkpoint expects {size}"
            raise DamagedState(str(run / name), problem, "Restore the file, or start a new run.")
    evaluations = {name: logs[name] for name in logs if name.startswith("evaluation/")}
    for name in changed_logs(run, evaluations if deciding else {}):
        problem = f"{run / name} is not what the run wrote"
        raise DamagedState(str(run / name), problem, "Restore the file, or start a new run.")


def changed_logs(run: Path, logs: Logs) -> Iterator[str]:
    """Yield the names of the files whose beginnings are not those that a checkpoint knows."""
    for name, (size, sha256) in logs.items():
        if _hash_of(run / name, size) != sha256:
            yield name


def _hash_of(path: Path, size: int) -> str:
    """Return the hash of the first ``size`` bytes; empty for a shorter file."""
    try:
        with path.open("rb") as file:
            content = file.read(size)
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if len(content) == size else ""
