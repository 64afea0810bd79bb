"""The directory of a PSRO: its configuration and its members, for one process at a time."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparring.config import Config
from sparring.config.loading import dump_config, load_config
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.files import finish_replacements, write_file
from sparring.evaluation.psro import member_name
from sparring.evaluation.tournament_files import lock_results
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import PSRO_FILE, PSRO_PAGE

CONFIG, PAYOFFS, PAGE = PSRO_FILE, "payoffs", PSRO_PAGE


@dataclass(frozen=True)
class PsroDirectory:
    """The directory, locked until :meth:`close`."""

    path: Path
    _lock: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """Create the directory, or open one that holds a PSRO."""
        lock = lock_results(path, CONFIG, "directory", "PSRO")
        finish_replacements(path, member_name(0))
        return cls(path, lock)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def config(self) -> Config | None:
        """Return the configuration that the PSRO began with, or was continued with."""
        file = self.path / CONFIG
        return load_config(str(file), {}) if file.is_file() else None

    def write_config(self, config: Config) -> None:
        """Write the configuration that all members share."""
        write_file(self.path / CONFIG, dump_config(config).encode())

    def run(self, number: int) -> Path:
        """Return the directory of a member: a best response's run, or the adapter of the first member."""
        return self.path / member_name(number)

    def adapter(self, number: int) -> Path | None:
        """Return the directory of a member's adapters; ``None`` for the base, which the first may be."""
        place = self.run(number)
        if number:
            run = RunDirectory(place)
            steps = run.saved_steps()
            if not steps:
                fix = "Put it back, or start again under another name"
                raise InputError(str(run.checkpoints), "has no checkpoint of this member", fix)
            return run.checkpoint(steps[-1])
        return place if any(place.glob(f"**/{ADAPTER_CONFIG}")) else None
