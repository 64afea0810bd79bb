"""What changes the tracker, and stands in its journal: a class for each kind of entry."""

from collections.abc import Mapping

import msgspec

Number = int | float | None
"""``None`` is a number that is not finite: JSON has no other for it."""


class _Entry(msgspec.Struct, frozen=True, tag=True):
    """An entry; in the file it has the name of its class."""


class Put(_Entry, frozen=True):
    """Windowed values, and the number of games by prefix."""

    batch_id: str
    values: Mapping[str, list[Number]]
    games: dict[str, int]


class LogInference(_Entry, frozen=True):
    """The load of an engine."""

    actor: str
    gpu_ids: list[int]
    stats: Mapping[str, Number]


class LogModelPool(_Entry, frozen=True):
    """The state of the model pool; (uid, other uid, games) is a pair that has met."""

    matches: list[tuple[str, str, int]]
    ratings: Mapping[str, Mapping[str, Number]]
    exploration: Mapping[str, Mapping[str, Number]]


class Log(_Entry, frozen=True):
    """Exact values; the last one counts."""

    values: Mapping[str, Number]


TrackerEntry = Put | LogInference | LogModelPool | Log
