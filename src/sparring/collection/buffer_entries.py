"""The games that a run's buffer takes in, the batches that it gives, and the entries of its journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sparring.collection.journal import JournalEntry
from sparring.collection.serialization import Packed, packed
from sparring.core import Rollout, Step, Trajectory
from sparring.core.play import GameKind


@dataclass(frozen=True)
class FinishedGame:
    """A game that has ended.

    Attributes:
        index: the game's number among those of its kind in the run.
        trajectories: those of the trained seats; empty if the game failed or is not to be learned from.
        rollout: the rollout, if it is to be logged.
        error: the reason why the game failed.
        kind: what it was played for.
    """

    index: int
    trajectories: list[Trajectory]
    rollout: Rollout | None = None
    error: str | None = None
    kind: GameKind = "train"


class PackedGames:
    """Games as msgpack, encoded once for both transport and journal.

    Args:
        games: the games.

    Attributes:
        names: the kind and the number of each game.
        packed: the games.
    """

    def __init__(self, games: Sequence[FinishedGame]) -> None:
        self.names = [(game.kind, game.index) for game in games]
        self.packed = packed(list(games))

    def games(self) -> list[FinishedGame]:
        """Return the games."""
        return _GAMES.decode(self.packed)


_GAMES = msgspec.msgpack.Decoder(list[FinishedGame], strict=False)


@dataclass(frozen=True)
class Demand:
    """The size of an update's batch, and the condition on which it is ready.

    Attributes:
        batch_size: entries of the batch; ``None`` takes everything.
        entries: the batch is ready when this many entries are stored,
        games: or when this many training games have ended since the previous batch.
        failed_share: a larger share of failed games since the last batch is an error.
        versions: the version of each policy that is not the number of the run's updates.
    """

    batch_size: int | None = None
    entries: int | None = None
    games: int | None = None
    failed_share: float = 1.0
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn(Packed):
    """The batch of an update.

    ``dropped`` steps were too old for it. ``games`` training games of the run had ended when it was drawn.
    It is empty if everything was too old; then this update's batch can be requested once more.
    """

    update: int
    steps: list[Step] = field(default_factory=list)
    dropped: int = 0
    games: int = 0


@dataclass(frozen=True)
class Ready:
    """The size of a batch that is drawn; see :class:`Drawn`. Nothing is drawn if ``steps`` is 0."""

    steps: int
    dropped: int
    games: int


class AddGames(JournalEntry, frozen=True):
    """Games of a collector, all of them new. Without a journal they need not be packed."""

    games: bytes | list[FinishedGame]

    def unpacked(self) -> list[FinishedGame]:
        """Return the games."""
        return _GAMES.decode(self.games) if isinstance(self.games, bytes) else self.games


class DrawBatch(JournalEntry, frozen=True):
    """The batch of an update is drawn; without ``batch_size`` it is everything.

    Steps are too old by the version of their policy in ``versions``, or else by the number of updates.
    """

    update: int
    batch_size: int | None
    versions: dict[str, int]


class LearnedBatch(JournalEntry, frozen=True):
    """The learner has made and saved an update."""

    update: int


class ForgetFailures(JournalEntry, frozen=True):
    """Too many games failed before an update: they are consumed, so that a resumed run plays others."""

    update: int


class ForgetVersionsAfter(JournalEntry, frozen=True):
    """The learner has lost the versions after this one."""

    version: int


BufferEntry = AddGames | DrawBatch | LearnedBatch | ForgetFailures | ForgetVersionsAfter
