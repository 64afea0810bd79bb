"""What changes the tracker, and stands in its journal: a class for each kind of entry."""

from collections.abc import Mapping

from sparring.collection.journal import JournalEntry

Number = int | float | None
"""``None`` is a number that is not finite: JSON has no other for it."""


class Put(JournalEntry, frozen=True):
    """Windowed values, and the number of games by prefix."""

    batch_id: str
    values: Mapping[str, list[Number]]
    games: dict[str, int]


class LogInference(JournalEntry, frozen=True):
    """The load of an engine."""

    actor: str
    gpu_ids: list[int]
    stats: Mapping[str, Number]


class LogModelPool(JournalEntry, frozen=True):
    """The state of the model pool; (uid, other uid, games) is a pair that has met."""

    matches: list[tuple[str, str, int]]
    ratings: Mapping[str, Mapping[str, Number]]
    exploration: Mapping[str, Mapping[str, Number]]


class Log(JournalEntry, frozen=True):
    """Exact values; the last one counts."""

    values: Mapping[str, Number]


TrackerEntry = Put | LogInference | LogModelPool | Log
