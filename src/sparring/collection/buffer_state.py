"""BufferState: what the buffer of a run stores, as the entries of its journal make it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never, get_args

import msgspec

from sparring.collection.buffers import BaseBuffer
from sparring.collection.journal import JournalEntry
from sparring.collection.serialization import (
    LeftOut,
    add_histories,
    packed,
    plain,
    plain_groups,
    unpacked,
    without_histories,
)
from sparring.core import Rollout, Step, Trajectory
from sparring.core.play import GameKind
from sparring.population.payoffs import NumberRanges


@dataclass(frozen=True)
class FinishedGame:
    """A game that has ended.

    Attributes:
        index: the game's number among those of its kind in the run.
        trajectories: those of the trained seats; empty if the game failed or is not to be learned from.
        rollout: the rollout, if it is to be logged.
        error: the reason why the game failed.
    """

    index: int
    trajectories: list[Trajectory]
    rollout: Rollout | None = None
    error: str | None = None
    kind: GameKind = "train"


class PackedGames:
    """Games, packed once for both transport and journal. ``names``: kind and number of each."""

    def __init__(self, games: Sequence[FinishedGame]) -> None:
        self.names = [(game.kind, game.index) for game in games]
        self.packed = _packed_games(games)

    def games(self) -> list[FinishedGame]:
        """Return the games."""
        return _unpacked_games(self.packed)


def _packed_games(games: Sequence[FinishedGame]) -> bytes:
    short, left_out = [], []
    for game in games:
        trajectories = []
        for one in game.trajectories:
            steps, of_steps = without_histories(one.steps)
            trajectories.append(replace(one, steps=steps))
            left_out.append(of_steps)
        short.append(replace(game, trajectories=trajectories))
    return packed((short, left_out))


def _unpacked_games(content: bytes) -> list[FinishedGame]:
    games, left_out = unpacked(content, _GAMES)
    trajectories = [one for game in games for one in game.trajectories]
    for one, of_steps in zip(trajectories, left_out, strict=True):
        add_histories(one.steps, of_steps)
    return games


_GAMES = msgspec.msgpack.Decoder(tuple[list[FinishedGame], list[LeftOut]], strict=False)


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
class Drawn:
    """The batch of an update: ``dropped`` steps were too old, ``games`` training games of the run had ended.

    If everything was too old it is empty, and this update's batch can be requested once more.
    """

    update: int
    steps: list[Step] = field(default_factory=list)
    dropped: int = 0
    games: int = 0

    def __reduce__(self) -> tuple[Callable[[bytes], "Drawn"], tuple[bytes]]:
        """Serialise packed, without histories."""
        steps, left_out = without_histories(self.steps)
        return _unpacked_drawn, (packed((replace(self, steps=steps), left_out)),)


def _unpacked_drawn(content: bytes) -> Drawn:
    drawn, left_out = unpacked(content, _DRAWN)
    add_histories(drawn.steps, left_out)
    return drawn


_DRAWN = msgspec.msgpack.Decoder(tuple[Drawn, LeftOut], strict=False)


@dataclass(frozen=True)
class Ready:
    """The size of a :class:`Drawn` batch; nothing is drawn if ``steps`` is 0."""

    steps: int
    dropped: int
    games: int


class AddGames(JournalEntry, frozen=True):
    """Games of a collector, all of them new. Without a journal they need not be packed."""

    games: bytes | list[FinishedGame]

    def unpacked(self) -> list[FinishedGame]:
        """Return the games."""
        return _unpacked_games(self.games) if isinstance(self.games, bytes) else self.games


class DrawBatch(JournalEntry, frozen=True):
    """The batch of an update is drawn; everything without ``batch_size``."""

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


Of = TypeVar("Of")


class BufferState:
    """The same entries give the same state.

    Attributes:
        ended: the numbers of all games that have ended, by kind.
        learned: the newest update that the learner has made.
        consumed: training games that were learned or left over.
        drawn: the batch that was drawn and is not learned.
        failed: why games failed since the last draw, by kind.
        to_write: the games to log, by the update whose batch was drawn after them.
    """

    def __init__(self, buffer: BaseBuffer, max_staleness: int | None, in_order: bool) -> None:
        self.buffer = buffer
        self.max_staleness = max_staleness
        self.in_order = in_order
        self.ended = _by_kind(NumberRanges)
        self.learned = 0
        self.consumed = 0
        self.drawn: Drawn | None = None
        self.failed = _by_kind(list[str])
        self.to_write: dict[int, list[FinishedGame]] = {}
        self._waiting: list[FinishedGame] = []
        self._to_log: list[FinishedGame] = []
        self._at_last_draw = _by_kind(int)

    def apply(self, entry: BufferEntry) -> Any:
        """Change the state as an entry says, and return the answer to who asked for the change."""
        match entry:
            case AddGames():
                for game in entry.unpacked():
                    self._add(game)
            case DrawBatch(update, batch_size, versions):
                return self._draw(update, batch_size, versions)
            case LearnedBatch(update):
                self._learned_batch(update)
            case ForgetFailures(update):
                self._forget_failures()
                if late := self.take_late():
                    self.to_write[update] = late
            case ForgetVersionsAfter(version):
                self._forget_after(version)
            case _:
                assert_never(entry)
        return None

    def has_drawn(self, update: int) -> bool:
        """Return whether the batch of this update is drawn and not learned."""
        return self.drawn is not None and self.drawn.update == update

    def is_ready(self, demand: Demand) -> bool:
        """Return whether a batch can be drawn."""
        waiting = sum(len(game.trajectories) for game in self._waiting)
        enough = demand.entries is not None and self.buffer.entries() + waiting >= demand.entries
        return enough or (demand.games is not None and self.since_last_draw() >= demand.games)

    @property
    def seen(self) -> NumberRanges:
        """The numbers of the training games that have ended."""
        return self.ended["train"]

    def since_last_draw(self, kind: GameKind = "train") -> int:
        """Return how many games of a kind have ended since the last draw."""
        return len(self.ended[kind]) - self._at_last_draw[kind]

    def waiting_steps(self) -> int:
        """Return the number of steps of games that are not sorted in yet."""
        return sum(len(t.steps) for game in self._waiting for t in game.trajectories)

    def take_late(self) -> list[FinishedGame]:
        """Return the games to log that ended since the last draw; they are not logged with the next."""
        late, self._to_log = self._to_log, []
        return late

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-able data, without :meth:`games` and a batch that is not learned."""
        return {
            "buffer": self.buffer.state_dict(with_steps=False),
            "ended": {kind: ended.state() for kind, ended in self.ended.items()},
            "learned": self.learned,
            "failed": self.failed,
            "at_last_draw": self._at_last_draw,
            "consumed": self.consumed,
        }

    def games(self) -> dict[str, list[Any]]:
        """Return what is stored."""
        return {
            "groups": self.buffer.stored_groups(),
            "waiting": list(self._waiting),
            "to_log": list(self._to_log),
        }

    def whole_state(self) -> dict[str, Any]:
        """Return the state with its games as plain JSON-able data; no batch is drawn and not learned."""
        games = msgspec.to_builtins(self.games() | {"groups": []}, enc_hook=plain)
        state: dict[str, Any] = self.state_dict() | games
        return state | {"groups": plain_groups(self.buffer.stored_groups())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` with the :meth:`games` in it, as read from JSON."""
        self.buffer.load_state_dict(state["buffer"] | {"groups": state["groups"]})
        self.ended = {kind: NumberRanges.from_state(ended) for kind, ended in state["ended"].items()}
        self.learned = state["learned"]
        self._waiting = msgspec.convert(state["waiting"], list[FinishedGame], strict=False)
        self._to_log = msgspec.convert(state["to_log"], list[FinishedGame], strict=False)
        self.failed = state["failed"]
        self._at_last_draw = state["at_last_draw"]
        self.consumed = state["consumed"]

    def _add(self, game: FinishedGame) -> None:
        self.ended[game.kind].add(game.index)
        if game.rollout is not None:
            self._to_log.append(game)
        if game.error is not None:
            self.failed[game.kind].append(game.error)
        elif self.in_order:
            self._waiting.append(game)
        else:
            self._sort_in(game)

    def _sort_in(self, game: FinishedGame) -> None:
        for trajectory in game.trajectories:
            self.buffer.add_player_trajectory(trajectory, trajectory.env_id)

    def _sort_in_waiting(self) -> None:
        for game in sorted(self._waiting, key=lambda game: game.index):
            self._sort_in(game)
        self._waiting = []

    def _draw(self, update: int, batch_size: int | None, versions: dict[str, int]) -> Drawn:
        self.learned = self.buffer.batches = update - 1  # lower than before where the learner went back
        self._sort_in_waiting()
        before = self.buffer.dropped_stale
        if self.max_staleness is not None:
            self.buffer.drop_stale(update - 1, self.max_staleness, versions)
        steps = self.buffer.draw(batch_size)
        drawn = Drawn(update, steps, self.buffer.dropped_stale - before, len(self.seen))
        self.drawn = drawn if steps else None
        if not steps:
            self.consumed = len(self.seen)
        self._begin_counting()
        if steps or not drawn.dropped:  # else the update is drawn again, and logs these games too
            self.to_write[update] = self.take_late()
        return drawn

    def _learned_batch(self, update: int) -> None:
        self.learned = update
        if self.drawn is not None:
            self.consumed = self.drawn.games
        self.drawn = None

    def _forget_after(self, version: int) -> None:
        buffer, drawn = self.buffer, self.drawn.steps if self.drawn is not None else []
        waiting = self.waiting_steps()
        buffer.clear()
        buffer.added += waiting
        buffer.sampled -= len(drawn)
        buffer.cleared += waiting + len(drawn)
        self.learned = buffer.batches = version
        self._waiting, self._to_log, self.drawn = [], [], None
        self.to_write.clear()
        self._forget_failures()

    def _forget_failures(self) -> None:
        self._begin_counting()
        self.consumed = len(self.seen)

    def _begin_counting(self) -> None:
        self.failed = _by_kind(list[str])
        self._at_last_draw = {kind: len(ended) for kind, ended in self.ended.items()}


def _by_kind(make: Callable[[], Of]) -> dict[GameKind, Of]:
    return {kind: make() for kind in get_args(GameKind)}
