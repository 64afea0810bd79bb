"""A run on disk: where everything lies, who may write, and what survives a kill."""

import fcntl
import os
import re
import shutil
from pathlib import Path

from selfplay.core import InputError, SelfplayError

CHECKPOINT_PREFIX = "step-"


class RunDirectory:
    """The directory of one run. See docs/run-directory.md for its layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.rollouts = path / "rollouts"
        self.batches = path / "batches"
        self.checkpoints = path / "checkpoints"
        self.population = path / "population"
        self.evaluation = path / "evaluation"
        self.report_file = path / "report.html"
        self._made = False
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make a new run directory and lock it.

        Raises:
            InputError: it exists already, or cannot be written.
        """
        run = cls(path)
        if run.config_file.exists():
            raise InputError(
                "--name",
                f"{path} already holds a run",
                f"Choose another name, or continue it: selfplay train --resume {path}",
            )
        run._made = not path.exists()
        try:
            for folder in (run.rollouts, run.checkpoints, run.evaluation):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "run.directory", f"{path} cannot be made ({error.strerror})", "Choose a writable directory."
            ) from error
        run.lock()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open an existing run for reading.

        Raises:
            InputError: there is no run.
        """
        run = cls(path)
        if not run.config_file.is_file():
            raise InputError("RUN", f"{path} is not a run directory", "Name one that has a config.toml.")
        return run

    def lock(self) -> None:
        """Take the run for writing until this process ends, however it ends.

        Raises:
            InputError: another process has it, or the directory cannot be written.
        """
        try:
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def unlock(self) -> None:
        """Let go of the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_new(self) -> None:
        """Delete the directory if this process made it and nothing was saved, so that its name is free."""
        if self._made and not self.saved_steps():
            shutil.rmtree(self.path, ignore_errors=True)

    def cannot_be_written(self, error: Exception) -> SelfplayError:
        """What to raise where writing failed in the middle of a run."""
        return SelfplayError(
            f"{self.path} cannot be written ({error}). Free the disk or fix its permissions, then: "
            f"selfplay train --resume {self.path}"
        )

    def write_config(self, text: str) -> None:
        """Write config.toml, whole or not at all."""
        scratch = self.config_file.with_suffix(".partial")
        scratch.write_text(text)
        scratch.replace(self.config_file)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of ``step`` lies."""
        return self.checkpoints / f"{CHECKPOINT_PREFIX}{step:06d}"

    def saved_steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        names = [path.name.removeprefix(CHECKPOINT_PREFIX) for path in self.checkpoints.glob("step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all but the newest ``keep`` checkpoints."""
        for step in self.saved_steps()[:-keep]:
            shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def truncate_after(self, step: int) -> None:
        """Delete evaluations and batches of later steps, which a resumed run makes again."""
        for path in [*self.evaluation.iterdir(), *self.batches.glob("*")]:
            number = re.match(r"(?:step|batch)-(\d+)", path.name)
            if number and int(number[1]) > step:
                path.unlink()
