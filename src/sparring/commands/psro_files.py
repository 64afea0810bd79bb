"""The directory of a PSRO: its configuration, what is known after each iteration, and the mixture."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from sparring.config import Config
from sparring.config.loading import dump_config, load_config
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.confidence_intervals import Interval
from sparring.core.files import finish_replacements, write_file
from sparring.core.manifest import sealed, unsealed
from sparring.evaluation.tournament_files import lock_results
from sparring.population import PayoffMatrix
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import PSRO_FILE, PSRO_PAGE

CONFIG, STATE, PAYOFFS, PAGE = PSRO_FILE, "psro.json", "payoffs", PSRO_PAGE


class Iteration(msgspec.Struct):
    """What an iteration found. The first, number 0, has no best response: its member is where all begins.

    Attributes:
        member: the member that joined, after so many ``updates`` and ``training_games``.
        payoff_games: finished games in the payoff matrix, of all pairs together.
        gain: over the mixture that it was trained against, summed over both seats.
        mixture: the probability of each member, solved with the new one.
        nash_conv: NashConv of the new mixture; ``None`` if it is not asked for.
        is_playable: whether the mixture gives legal answers often enough for ``nash_conv`` to say anything.
    """

    member: str
    updates: int
    training_games: int
    payoff_games: int
    gain: Interval | None
    mixture: dict[str, float]
    nash_conv: float | None
    is_playable: bool = True


class PsroState(msgspec.Struct):
    """The content of ``psro.json``. Matrices have a row and a column for each member, in order.

    ``payoffs`` are what the row earns against the column, the mean over both seats, of so many ``games``.
    """

    env_id: str
    solver: str
    members: list[str]
    payoffs: list[list[float]]
    standard_error: list[list[float]]
    games: list[list[int]]
    iterations: list[Iteration]

    @property
    def matrix(self) -> PayoffMatrix:
        """The payoffs."""
        numbers = (np.array(one) for one in (self.payoffs, self.standard_error, self.games))
        return PayoffMatrix(tuple(self.members), *numbers)


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

    def write_state(self, state: PsroState) -> None:
        """Write what was found."""
        write_file(self.path / STATE, sealed(msgspec.to_builtins(state)))

    def run(self, number: int) -> Path:
        """Return the directory of a member: a best response's run, or the adapter of the first member."""
        return self.path / member_name(number)

    def adapter(self, number: int) -> Path | None:
        """Return a member's adapter; ``None`` if it is the base model, as the first member may be."""
        place = self.run(number)
        if number:
            run = RunDirectory(place)
            steps = run.saved_steps()
            if not steps:
                fix = "Put it back, or start again under another name"
                raise InputError(str(run.checkpoints), "has no checkpoint of this member", fix)
            return run.checkpoint(steps[-1])
        return place if (place / ADAPTER_CONFIG).is_file() else None


def member_name(number: int) -> str:
    """Return the name of the member that joined in an iteration."""
    return f"member-{number:03d}"


def read_state(path: Path) -> PsroState | None:
    """Return what the PSRO in ``path`` found so far; ``None`` before the first iteration."""
    file = path / STATE
    if not file.is_file():
        return None
    try:
        return msgspec.convert(unsealed(file.read_bytes()), PsroState)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise InputError(str(file), f"is damaged: {error}", "Start again under another name") from error
