"""What changes the pool, and stands in its journal: a class for each kind of entry."""

from typing import Literal

from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.journal import JournalEntry
from sparring.collection.results import GameResult
from sparring.core.adapters import Weights


class AddCheckpoint(JournalEntry, frozen=True):
    """A checkpoint of a policy joins the pool."""

    path: str | None
    iteration: int
    policy: str


class AddFixed(JournalEntry, frozen=True):
    """A model that is not trained joins the pool."""

    name: str
    prior_mu: float
    kind: Literal["fixed", "script"]
    active: bool
    policy: str = ""


class AddPolicy(JournalEntry, frozen=True):
    """A policy's running average joins the pool."""

    uid: str


class RateMatch(JournalEntry, frozen=True):
    """Games of an evaluation are rated: (uid, other uid, reward, environment) each.

    Each of its matches has ``size`` games.
    """

    step: int
    size: int
    games: list[tuple[str, str, float, str]]


class RateHeldGames(JournalEntry, frozen=True):
    """All games of an update have ended, so they are rated."""


class FreezePlayers(JournalEntry, frozen=True):
    """Players of a league join the pool after an update, with these adapters."""

    step: int
    paths: dict[str, str | None]


class Publish(JournalEntry, frozen=True):
    """The policies have new weights."""

    weights: Weights
    consumed: int


class ForgetAfter(JournalEntry, frozen=True):
    """The learner has lost the updates after this one."""

    step: int


class Register(JournalEntry, frozen=True):
    """A collector starts, or starts again."""

    collector: str
    settings: PlaySettings


class HandOut(JournalEntry, frozen=True):
    """Games go to a collector, at most this many of each kind, as the answer to its request ``number``."""

    collector: str
    number: int
    training: int
    evaluation: int


class Finish(JournalEntry, frozen=True):
    """Games have ended."""

    results: list[GameResult]


class Stop(JournalEntry, frozen=True):
    """Play ends."""


class Resume(JournalEntry, frozen=True):
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
