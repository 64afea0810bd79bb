"""How near responses in tables come to what can be gained, measured where that is known exactly.

The table of this package is ``calibration.json``; ``sparring card --calibrate`` makes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import median

import msgspec
import numpy as np

from sparring.core import InputError
from sparring.core.confidence_intervals import Interval
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import load_game
from sparring.evaluation.nash_conv import states_of

CALIBRATION_FILE = "calibration.json"
SIZES = (100, 1_000, 10_000)
"""Games with at most so many information states, and larger ones, are kinds of their own."""


class KindOfGame(msgspec.Struct, frozen=True):
    """A kind of game. ``size`` is the place in ``SIZES`` of the first that is not exceeded."""

    perfect_information: bool
    players: int
    size: int

    def __str__(self) -> str:
        information = "perfect" if self.perfect_information else "imperfect"
        least = SIZES[self.size - 1] + 1 if self.size else 1
        most = f" to {SIZES[self.size]:,}" if self.size < len(SIZES) else " or more"
        return f"{information} information, {self.players} players, {least:,}{most} information states"


class CalibrationCell(msgspec.Struct, frozen=True):
    """A policy in a game: what can be gained over it, and what was found.

    Attributes:
        states: number of information states.
        unit: the difference between the largest and the smallest reward.
        exact: what best responses gain in all seats, with invalid moves as in the games.
        found: the sum of the gains, with its 95% interval.
        settled: whether the response had, which learned from so many ``training_games``.
        seconds: CPU seconds of training and measuring, in the process that ended them.
    """

    game: str
    perfect_information: bool
    states: int
    players: int
    unit: float
    policy: str
    exact: float
    found: tuple[float, float, float]
    settled: bool
    training_games: int
    seconds: float

    @property
    def kind(self) -> KindOfGame:
        """The kind of its game."""
        return KindOfGame(self.perfect_information, self.players, size_of(self.states))

    @property
    def interval(self) -> Interval:
        """What was found."""
        return Interval(*self.found)

    @property
    def is_above(self) -> bool:
        """Whether more was found than there is, beyond the interval."""
        return self.interval.low > self.exact

    @property
    def recovery(self) -> float | None:
        """The share of the exact gain that was found; ``None`` where the exact gain is within the noise."""
        noise = self.interval.high - self.interval.mid
        return self.interval.mid / self.exact if self.exact > noise else None


class Calibration(msgspec.Struct, frozen=True):
    """The table."""

    cells: list[CalibrationCell]

    def to_bytes(self) -> bytes:
        """Return the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


@dataclass(frozen=True)
class CalibrationSummary:
    """How well responses were calibrated on some cells.

    Attributes:
        rank_correlation: Spearman's, of what was found with the exact gain, both relative to the range of the
            game's rewards; ``None`` for fewer than three cells, or equal ones.
        median_recovery: of the cells whose exact gain is beyond the noise; ``None`` without any.
        above: how many found more than there is, beyond the interval.
    """

    cells: int
    games: int
    rank_correlation: float | None
    median_recovery: float | None
    above: int


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """Return the table of this package; without cells if nothing is calibrated."""
    content = files("sparring.evaluation").joinpath(CALIBRATION_FILE).read_bytes()
    return msgspec.json.decode(content, type=Calibration)


def kind_of(env_id: str) -> KindOfGame | None:
    """Return the kind of an OpenSpiel game; ``None`` for any other."""
    if library_of(env_id) != "openspiel":
        return None
    kind = load_game(env_id).get_type()
    try:
        states = len(states_of(env_id))
    except InputError:  # too many to be listed
        states = SIZES[-1] + 1
    perfect = kind.information == kind.Information.PERFECT_INFORMATION
    return KindOfGame(perfect, load_game(env_id).num_players(), size_of(states))


def size_of(states: int) -> int:
    """Return the place in ``SIZES`` of the first number that is not below ``states``."""
    return next((place for place, most in enumerate(SIZES) if states <= most), len(SIZES))


def of_kind(cells: Sequence[CalibrationCell], kind: KindOfGame) -> list[CalibrationCell]:
    """Return the cells of one kind of game."""
    return [one for one in cells if one.kind == kind]


def summary_of(cells: Sequence[CalibrationCell]) -> CalibrationSummary:
    """Return how well the responses of some cells were calibrated."""
    recoveries = [one.recovery for one in cells if one.recovery is not None]
    return CalibrationSummary(
        len(cells),
        len({one.game for one in cells}),
        _rank_correlation(
            [one.exact / one.unit for one in cells], [one.interval.mid / one.unit for one in cells]
        ),
        median(recoveries) if recoveries else None,
        sum(one.is_above for one in cells),
    )


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; equal values have the mean of their ranks."""
    if len(one) < 3 or len({*one}) < 2 or len({*other}) < 2:
        return None
    found = float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])
    return found if math.isfinite(found) else None


def _ranks(values: Sequence[float]) -> list[float]:
    array = np.asarray(values)
    return [float(np.sum(array < value) + (np.sum(array == value) - 1) / 2) for value in array]
