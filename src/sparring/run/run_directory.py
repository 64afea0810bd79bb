"""A run on disk: where its files are, which process may write them, and what survives a kill.

What is pruned: old checkpoints here, all but the best in ``best.py``, frozen copies not drawn again in
``play_source.py``, and on a cluster old versions in ``cluster/learner.py``. A run resumes in
``Trainer._begin``, from what its learners saved last.
"""

import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from sparring.collection.start_log import last_session, note_failure
from sparring.core import InputError, SparringError
from sparring.core.errors import DamagedState
from sparring.core.files import (
    EPOCH_FILE,
    LOCK,
    Epoch,
    check_kinds,
    is_locked,
    lock_directory,
    remove_directory,
    write_file,
)
from sparring.core.manifest import check_files
from sparring.core.text import shell_command
from sparring.run.run_layout import (
    BEFORE_TUNING,
    GIVEN,
    OF_STORE,
    PSRO_FILE,
    SINKS,
    delete_after,
    finish_writes,
    foreign,
    other_name_or_continue,
    steps_in,
)
from sparring.run.uploads import Uploads

CHECKPOINT_PREFIX = "step-"


class RunDirectory:
    """The directory of one run; docs/run-directory.md has its layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.rollouts = path / "rollouts"
        self.batches = path / "batches"
        self.checkpoints = path / "checkpoints"
        self.bests = path / "best"
        self.given = path / GIVEN
        self.population = path / "population"
        self.standings_file = path / "standings.jsonl"
        self.evaluation = path / "evaluation"
        self.tasks = path / "tasks"
        self.report_file = path / "report.html"
        self._made = False
        self._is_new = False
        self._lock: int | None = None
        self.epoch: Epoch | None = None
        self.uploads: Uploads | None = None

    @property
    def name(self) -> str:
        """The run's name; that of a best response begins with its PSRO's, as all have a member-001."""
        path = self.path.absolute()
        of_psro = (path.parent / PSRO_FILE).is_file()
        return f"{path.parent.name}-{path.name}" if of_psro else path.name

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make a new run directory and lock it; what is left of one that never began is deleted.

        Raises InputError if the run exists already, or the directory cannot be written.
        """
        run = cls(path)
        if run.config_file.exists():
            raise InputError("--name", f"{path} already holds a run", other_name_or_continue(path))
        left_over = run.never_began()
        if path.exists() and not left_over:
            raise InputError("--name", f"{path} exists already, and is no run", "Choose another name.")
        run._is_new = not path.exists()
        run._made = run._is_new or (left_over and any(path.iterdir()))
        try:
            for folder in (run.rollouts, run.checkpoints, run.evaluation):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "run.directory", f"{path} cannot be made ({error.strerror})", "Choose a writable directory."
            ) from error
        run.lock()
        if left_over:
            run._delete_left_over()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open an existing run for reading.

        Raises InputError if ``path`` is not a run, or something in it is not the file that it should be.
        """
        run = cls(path)
        if not run.config_file.is_file():
            raise InputError("RUN", f"{path} is not a run directory", "Name one that has a config.toml.")
        check_kinds(path)
        return run

    def never_began(self) -> bool:
        """Whether this is what a kill left of a run before its configuration was written.

        Such a directory was locked once or is empty, holds nothing but what a run makes before it begins, and
        nobody works in it. What W&B and TensorBoard wrote stays.
        """
        if self.config_file.exists() or not self.path.is_dir() or self.is_in_use():
            return False
        folders = (self.rollouts, self.checkpoints, self.evaluation)
        names = {path.name for path in self.path.iterdir()}
        if LOCK not in names and names - {folder.name for folder in folders}:
            return False
        if EPOCH_FILE not in names and not names.isdisjoint(BEFORE_TUNING):
            return False
        if any(folder.is_dir() and any(folder.iterdir()) for folder in folders):
            return False
        if any(path.stat().st_size for path in (self.metrics_file, self.standings_file) if path.is_file()):
            return False
        known = {*BEFORE_TUNING, *SINKS}
        of_others = (path for path in foreign(self.path) if path.relative_to(self.path).parts[0] not in known)
        made = {*(folder.name for folder in folders), GIVEN, OF_STORE, "states", *SINKS}
        return not any(of_others) and all(path.name in made for path in self.path.iterdir() if path.is_dir())

    def _delete_left_over(self) -> None:
        remove_directory(self.given)
        shutil.rmtree(self.path / OF_STORE, ignore_errors=True)
        for name in BEFORE_TUNING:
            (self.path / name).unlink(missing_ok=True)

    def lock(self) -> None:
        """Lock the run for writing until this process ends, however it ends, and begin an epoch of it.

        What a kill left of unfinished writes is deleted, or finished. Raises InputError if another process
        holds the lock, or the directory cannot be written.
        """
        with ExitStack() as on_failure:
            on_failure.callback(self.unlock)
            try:
                self._lock = lock_directory(self.path)
                self.epoch = Epoch.begin(self.path)
                finish_writes(self.path)
            except BlockingIOError as error:
                raise InputError(
                    "run directory", f"{self.path} is in use by another process", "Wait for it or stop it."
                ) from error
            except OSError as error:
                raise InputError(
                    "run.directory",
                    f"{self.path} cannot be written ({error.strerror})",
                    "Choose a writable directory.",
                ) from error
            on_failure.pop_all()

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_in_use(self) -> bool:
        """Whether another process holds the lock: it trains this run."""
        return is_locked(self.path)

    def is_finished(self, updates: int) -> bool:
        """Whether a run of so many updates is complete: nothing is left for a resume."""
        return self.report_file.exists() and max(self.saved_steps(), default=-1) >= updates

    def check_unfinished(self, updates: int) -> None:
        """Raise an InputError if a run of so many updates is complete, so that it cannot be resumed.

        It can be if its store lacks something.
        """
        if self.is_finished(updates) and last_session(self.path).store is None:
            raise InputError(
                "--resume",
                f"{self.path} is finished ({self.saved_steps()[-1]} of {updates} updates)",
                "For more updates give --learning.steps too; "
                f"look at it: {shell_command('report', self.path)}",
            )

    def ends_damaged(self) -> bool:
        """Whether the newest checkpoint is damaged."""
        try:
            for step in self.saved_steps()[-1:]:
                check_files(self.checkpoint(step))
        except DamagedState:
            return True
        return False

    def check_epoch(self) -> None:
        """Raise a SparringError if another process has resumed the run since this one locked it."""
        if self.epoch is not None:
            self.epoch.check()

    def remove_new(self) -> bool:
        """Delete the directory if this process made it and nothing is saved in it; return whether it was.

        A directory that a resume can start from stays: one with a checkpoint, or with an update on a cluster.
        """
        if not self._made or not self.path.exists() or self._newest() or self.saved_steps():
            return False
        if self.epoch is not None and self.epoch.is_over():
            return False
        if any(self._is_of_others(path) for path in foreign(self.path)):
            return False
        shutil.rmtree(self.path, ignore_errors=True)
        return True

    def _is_of_others(self, foreign: Path) -> bool:
        of_sink = foreign.relative_to(self.path).parts[0] in SINKS
        return not (of_sink and self._is_new)

    def _newest(self) -> int:
        """Return the newest update that is saved; 0 if none is."""
        return max([*self.saved_updates(), *self.saved_steps()], default=0)

    def after_failure(self, problem: str) -> SparringError:
        """Return the error of a run that stopped for ``problem``; a run that cannot be resumed is removed.

        The error says how to continue, unless another process has done so.
        """
        if self.remove_new():
            return SparringError(f"{problem}. No update is saved yet, so nothing is kept")
        if self.path.exists() and self.epoch is not None and self.epoch.is_over():
            return SparringError(problem)
        with suppress(OSError):  # the disk may be full, which may be the problem
            note_failure(self.path, problem)
        newest = self._newest()
        saved = f"What was learned up to update {newest} is saved" if newest else "No update is saved yet"
        return SparringError(
            f"{problem}. {saved}; continue with: {shell_command('train', '--resume', self.path)}"
        )

    def cannot_be_written(self, error: Exception) -> SparringError:
        """Return the error of a run in which a write failed."""
        return self.after_failure(
            f"{self.path} cannot be written ({error}): free the disk or fix its permissions"
        )

    def write_config(self, text: str) -> None:
        """Write config.toml completely or not at all."""
        self.check_epoch()
        write_file(self.config_file, text.encode())

    def checkpoint(self, step: int) -> Path:
        """Return the directory of the checkpoint of ``step``."""
        return self.checkpoints / f"{CHECKPOINT_PREFIX}{step:06d}"

    def best(self, step: int) -> Path:
        """Return the directory of the adapters that were the best after ``step``."""
        return self.bests / f"{CHECKPOINT_PREFIX}{step:06d}"

    def saved_update(self, step: int) -> Path:
        """Return the directory of the learners of a run on a cluster after update ``step``."""
        return self.path / "learner" / f"{step:06d}"

    def saved_updates(self) -> list[int]:
        """Return the updates of a run on a cluster that are saved, oldest first."""
        names = [path.name for path in (self.path / "learner").glob("*")]
        return sorted(int(name) for name in names if name.isdigit())

    def saved_steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        return steps_in(self.checkpoints)

    def best_steps(self) -> list[int]:
        """Return the steps whose adapters were the best so far and are kept; the best of all is the last."""
        return steps_in(self.bests)

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all but the newest ``keep`` checkpoints."""
        for step in self.saved_steps()[:-keep]:
            remove_directory(self.checkpoint(step))

    def truncate_after(self, step: int, batch: int | None = None) -> None:
        """Delete what was written after later steps, which a resumed run makes again.

        ``batch`` is the newest batch that stays with its games, if it is not that of ``step``.
        """
        for folder in (self.evaluation, self.tasks, self.bests, self.checkpoints):
            delete_after(folder, step)
        for folder in (self.rollouts, self.batches):
            delete_after(folder, step if batch is None else batch)
