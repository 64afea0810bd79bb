"""SavedState: what ``state.json`` of a checkpoint holds, and the files of the run that it knows."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from sparring.core.adapters import STATE_FILE
from sparring.core.errors import DamagedState
from sparring.core.manifest import damaged
from sparring.learn.saved_states import read_state
from sparring.run.run_layout import growing_files, log_files

STATE_FORMAT = 7
"""Format of a checkpoint. It changes with the other files too."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Logs = dict[str, tuple[Count, str]]
"""The size and the hash of the files that a run has written, by their paths in it."""


class LoopTurn(msgspec.Struct, forbid_unknown_fields=True):
    """The seconds of play of the last update, and how much was played."""

    play: float
    played: float


class SavedState(msgspec.Struct, kw_only=True):
    """What the loop needs besides its learners is there or, before the first update on Ray, all absent.

    Attributes:
        step: updates of the run.
        versions: updates of each policy.
        samples_seen: what each policy has learned from.
        started: the update after which a policy began again, if it did.
        trained_records: answers trained on in all updates; it and the three after it are those of ``Saved``.
        source: the state of what is played.
        metrics: the state of the metrics.
        turn: the last turn of the loop.
        config: the configuration.
        logs: the run's other files.
    """

    format: int
    step: Count
    versions: dict[str, Count]
    samples_seen: dict[str, Count]
    started: dict[str, Count]
    trained_records: Count
    figures: dict[str, float | None] = {}
    seconds: float = 0.0
    trained_tokens: float = 0.0
    source: dict[str, Any] | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    turn: LoopTurn | UnsetType = UNSET
    config: dict[str, Any] | UnsetType = UNSET
    logs: Logs | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raise a ValueError if parts of the state are missing."""
        of_the_loop = (self.source, self.metrics, self.turn, self.config, self.logs)
        if UNSET in of_the_loop and any(one is not UNSET for one in of_the_loop):
            raise ValueError("a part of the state is missing")
        if self.versions.keys() != self.samples_seen.keys():
            raise ValueError("the policies differ")


def read_saved_state(directory: Path, step: int) -> tuple[SavedState, dict[str, Any]]:
    """Return the state in a checkpoint of update ``step``: typed, and as it is. All its files are checked.

    Raises DamagedState if a file is missing or damaged, or the state is of another update, and InputError if
    another version of sparring wrote it.
    """
    state, content = read_state(directory, SavedState, STATE_FORMAT)
    if state.step != step:
        raise damaged(directory / STATE_FILE)
    return state, content


class RunLogs:
    """The logs of a run by size and hash; a file that has not changed is read once.

    A run trains on none of them, but it ends and keeps its best adapters by its evaluations, and it continues
    ``metrics.jsonl`` and ``standings.jsonl`` where the checkpoint was.
    """

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
    """Raise DamagedState if a growing file is shorter than a checkpoint knows it, or an evaluation changed.

    Evaluations matter if they are ``deciding`` when the run ends, or which adapters it keeps.
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
    try:
        with path.open("rb") as file:
            content = file.read(size)
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if len(content) == size else ""
