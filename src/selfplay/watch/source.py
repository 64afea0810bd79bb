"""RunDirectorySource: reads a run's directory repeatedly while it grows, or after the run has finished."""

import os
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from selfplay.read.rollouts import number_of
from selfplay.read.run_data import Evaluation
from selfplay.watch.last_game import ReadableGame, last_game
from selfplay.watch.metrics import MetricsTail
from selfplay.watch.run_view import Meeting, RunView

EVALUATIONS_AT_A_TIME = 50
"""The number of evaluation files read at a time."""
MAX_STATE_BYTES = 1 << 26
"""A larger state.json (one that contains a large buffer) is not read."""
SURE_AFTER_NS = 2_000_000_000
"""A folder that changed more recently than this is listed again: a coarse clock may hide another change."""


class _State(msgspec.Struct):
    """The part of a checkpoint's state.json that is read."""

    class _Source(msgspec.Struct):
        class _Pool(msgspec.Struct):
            matches: dict[str, dict[str, Meeting]] = {}

        pool: _Pool = msgspec.field(default_factory=_Pool)

    source: _Source = msgspec.field(default_factory=_Source)


@dataclass
class _Folder:
    """A folder's files and their modification times, listed again only after the folder has changed."""

    path: Path
    entries: dict[str, int] = field(default_factory=dict)
    _stamp: int = -1

    def look(self) -> bool:
        """List the folder if necessary and return whether it was listed. A missing folder is empty."""
        try:
            stamp = self.path.stat().st_mtime_ns
            if stamp == self._stamp and time.time_ns() - stamp > SURE_AFTER_NS:
                return False
            with os.scandir(self.path) as found:
                self.entries = {entry.name: entry.stat().st_mtime_ns for entry in found}
        except FileNotFoundError:
            self.entries, stamp = {}, -1
        self._stamp = stamp
        return True

    def newest(self, suffix: str) -> Path | None:
        """Return the entry with the highest step among those that end in ``suffix``."""
        names = [name for name in self.entries if name.startswith("step-") and name.endswith(suffix)]
        return max((self.path / name for name in names), key=number_of, default=None)


class RunDirectorySource:
    """A :class:`selfplay.watch.run_view.Source` of a run directory.

    Missing or damaged files are left out. Nothing is ever written.

    Args:
        path: the run's directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config: dict[str, Any] = {}
        self._metrics = MetricsTail(path / "metrics.jsonl")
        self._evaluation_files = _Folder(path / "evaluation")
        self._evaluations: dict[str, tuple[int, Evaluation | None]] = {}
        self._checkpoints = _Folder(path / "checkpoints")
        self._meetings: dict[str, dict[str, Meeting]] = {}
        self._meetings_of: Path | None = None
        self._logs = _Folder(path / "rollouts")
        self._game: ReadableGame | None = None
        self._game_of: tuple[Path, int] | None = None

    def read(self) -> RunView:
        """Read what is new; see :meth:`selfplay.watch.run_view.Source.read`."""
        trouble = ""
        unread = 0
        try:
            os.stat(self.path)
            self._read_config()
            self._metrics.read()
            unread = self._read_evaluations()
            self._read_meetings()
            self._read_game()
        except OSError as error:
            trouble = f"{self.path} cannot be read ({error.strerror})"
        evaluations = [one for _, one in self._evaluations.values() if one is not None]
        files_read = 1 - unread / max(1, len(self._evaluation_files.entries))
        return RunView(
            self.path.resolve().name,
            self._config,
            self._metrics.series(),
            dict(self._metrics.latest),
            sorted(evaluations, key=lambda evaluation: evaluation.step),
            self._meetings,
            number_of(self._meetings_of) if self._meetings_of is not None else None,
            self._game,
            1.0 if trouble else min(self._metrics.share_read, files_read),
            self._metrics.damaged,
            trouble,
        )

    def _read_config(self) -> None:
        if self._config:
            return
        try:
            self._config = tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))
        except (FileNotFoundError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            self._config = {}

    def _read_evaluations(self) -> int:
        """Read some of the new or changed evaluations and return the number still unread."""
        files = self._evaluation_files
        if files.look():
            for gone in self._evaluations.keys() - files.entries.keys():
                del self._evaluations[gone]
        unread = [
            name
            for name, stamp in sorted(files.entries.items())
            if name.endswith(".json") and self._evaluations.get(name, (-1,))[0] != stamp
        ]
        for name in unread[:EVALUATIONS_AT_A_TIME]:
            self._evaluations[name] = files.entries[name], _read_evaluation(files.path / name)
        return len(unread[EVALUATIONS_AT_A_TIME:])

    def _read_meetings(self) -> None:
        """Read the match counts from the newest checkpoint; an unreadable checkpoint changes nothing."""
        if not self._checkpoints.look():
            return
        newest = self._checkpoints.newest("")
        if newest is None or newest == self._meetings_of:
            return
        path = newest / "state.json"
        try:
            if path.stat().st_size > MAX_STATE_BYTES:
                return
            state = msgspec.json.decode(path.read_bytes(), type=_State)
        except (FileNotFoundError, msgspec.DecodeError):
            return
        self._meetings, self._meetings_of = state.source.pool.matches, newest

    def _read_game(self) -> None:
        """Read the last game of the newest log."""
        if not self._logs.look():
            return
        newest = self._logs.newest(".jsonl")
        if newest is None or (newest, self._logs.entries[newest.name]) == self._game_of:
            return
        try:
            self._game = last_game(newest) or self._game
        except FileNotFoundError:
            return
        self._game_of = newest, self._logs.entries[newest.name]


def _read_evaluation(path: Path) -> Evaluation | None:
    """Return one evaluation without its long fields; ``None`` if the file is invalid or gone."""
    try:
        evaluation = msgspec.json.decode(path.read_bytes(), type=Evaluation)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    evaluation.values, evaluation.policy, evaluation.observations = [], {}, {}
    if evaluation.step < 0:
        evaluation.step = number_of(path)
    return evaluation
