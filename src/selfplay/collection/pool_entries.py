"""What changes the pool, and stands in its journal: a class for each kind of entry."""

from typing import Literal

import msgspec

from selfplay.collection.games_in_flight import PlaySettings
from selfplay.collection.results import GameResult
from selfplay.core.adapters import Weights


class _Entry(msgspec.Struct, frozen=True, tag=True):
    """An entry; in the file it has the name of its class."""


class AddCheckpoint(_Entry, frozen=True):
    """A checkpoint of a policy joins the pool."""

    path: str | None
    iteration: int
    policy: str


class AddFixed(_Entry, frozen=True):
    """A model that is not trained joins the pool."""

    name: str
    prior_mu: float
    kind: Literal["fixed", "script"]
    active: bool
    policy: str = ""


class AddPolicy(_Entry, frozen=True):
    """A policy's running average joins the pool."""

    uid: str


class RateMatch(_Entry, frozen=True):
    """Games of an evaluation are rated: (uid, other uid, reward, environment) each.

    Each of its matches has ``size`` games.
    """

    step: int
    size: int
    games: list[tuple[str, str, float, str]]


class RateHeldGames(_Entry, frozen=True):
    """All games of an update have ended, so they are rated."""


class FreezePlayers(_Entry, frozen=True):
    """Players of a league join the pool after an update, with these adapters."""

    step: int
    paths: dict[str, str | None]


class Publish(_Entry, frozen=True):
    """The policies have new weights."""

    weights: Weights
    consumed: int


class ForgetAfter(_Entry, frozen=True):
    """The learner has lost the updates after this one."""

    step: int


class Register(_Entry, frozen=True):
    """A collector starts, or starts again."""

    collector: str
    settings: PlaySettings


class HandOut(_Entry, frozen=True):
    """Games go to a collector, at most this many of each kind, as the answer to its request ``number``."""

    collector: str
    number: int
    training: int
    evaluation: int


class Finish(_Entry, frozen=True):
    """Games have ended."""

    results: list[GameResult]


class Stop(_Entry, frozen=True):
    """Play ends."""


class Resume(_Entry, frozen=True):
    """Play goes on after a stop."""


PoolEntry = (
    AddCheckpoint
    | AddFixed
    | AddPolicy
    | RateMatch
    | RateHeldGames
    | FreezePlayers
    | Publish
    | ForgetAfter
    | Register
    | HandOut
    | Finish
    | Stop
    | Resume
)
