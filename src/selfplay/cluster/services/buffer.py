"""BufferService: the replay buffer of a cluster. It neither loses an accepted game nor hands it out twice.

Collectors send the same game again when they got no answer, and a killed collector's games are played again:
a game that is already known changes nothing. The learner requests the batch of an update by the update's
number and gets the same batch until it reports that it has learned it. Where the learner has lost an update,
the buffer forgets what that update's weights played.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from selfplay.cluster.packing import packed
from selfplay.cluster.services.journal import Journal
from selfplay.cluster.services.number_set import NumberSet
from selfplay.core import Rollout, SelfplayError, Step, Trajectory
from selfplay.replay.buffers import BaseBuffer
from selfplay.replay.rollout_log import RolloutLog
from selfplay.training.epoch import Epoch


@dataclass(frozen=True)
class FinishedGame:
    """A training game that has ended.

    Attributes:
        index: the game's number in the run.
        trajectories: those of the trained seats; empty if the game failed or is left out of training.
        rollout: the rollout, if it is to be logged.
        error: the reason why the game failed.
    """

    index: int
    trajectories: list[Trajectory]
    rollout: Rollout | None = None
    error: str | None = None


class Games(tuple[FinishedGame, ...]):
    """Games that are sent between processes as msgpack."""

    @cached_property
    def packed(self) -> bytes:
        """The games as msgpack, encoded once for both transport and journal."""
        return packed(list(self))

    def __reduce__(self) -> tuple[Callable[[bytes], "Games"], tuple[bytes]]:
        """Serialise the games as msgpack."""
        return unpacked_games, (self.packed,)


def unpacked_games(content: bytes) -> Games:
    """Return the games that :attr:`Games.packed` encoded."""
    games = Games(_GAMES.decode(content))
    games.packed = content
    return games


_GAMES = msgspec.msgpack.Decoder(list[FinishedGame], strict=False)


@dataclass(frozen=True)
class Demand:
    """The size of an update's batch, and the condition on which it is ready.

    Attributes:
        batch_size: entries of the batch; ``None`` takes everything.
        entries: the batch is ready when this many entries are stored,
        games: or when this many training games have ended since the previous batch.
        failed_share: a larger share of failed games since the last batch is an error.
    """

    batch_size: int | None = None
    entries: int | None = None
    games: int | None = None
    failed_share: float = 1.0


@dataclass(frozen=True)
class Drawn:
    """The batch of an update.

    ``dropped`` steps were too old for it. ``games`` training games of the run had ended when it was drawn.
    It is empty if everything was too old; then this update's batch can be requested once more. It is sent as
    msgpack, like :class:`Games`.
    """

    update: int
    steps: list[Step] = field(default_factory=list)
    dropped: int = 0
    games: int = 0

    def __reduce__(self) -> "tuple[Callable[[bytes], Drawn], tuple[bytes]]":
        """Serialise as msgpack."""
        return _unpacked_drawn, (packed(self),)


def _unpacked_drawn(content: bytes) -> Drawn:
    return _DRAWN.decode(content)


_DRAWN = msgspec.msgpack.Decoder(Drawn, strict=False)


@dataclass(frozen=True)
class Ready:
    """The size of a batch that is drawn; see :class:`Drawn`. Nothing is drawn if ``steps`` is 0."""

    steps: int
    dropped: int
    games: int


class BufferService:
    """See the module.

    Args:
        buffer: the buffer, new and empty.
        max_staleness: steps that acted more versions ago than this are dropped; ``None`` keeps all.
        in_order: add the games of an update in the order of their numbers when the batch is drawn, so that
            the batch does not depend on which game finished first.
        directory: the journal's directory; ``None`` keeps no journal.
        rollouts: the directory that logged games are written to.
        epoch: the run's epoch; see :class:`Journal`.
    """

    def __init__(
        self,
        buffer: BaseBuffer,
        *,
        max_staleness: int | None = None,
        in_order: bool = False,
        directory: str | None = None,
        rollouts: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self.buffer = buffer
        self.max_staleness = max_staleness
        self.in_order = in_order
        self.seen = NumberSet()
        self.learned = 0
        self.stopped = False
        self.failure: str | None = None
        self._waiting: list[FinishedGame] = []
        self._to_log: list[FinishedGame] = []
        self._failed: list[str] = []
        self._games_at_last_draw = 0
        self._consumed = 0
        self._drawn: Drawn | None = None
        self._changed = asyncio.Event()
        self._rollout_log = RolloutLog(rollouts) if rollouts is not None else None
        self._journal = None if directory is None else Journal(Path(directory), epoch)
        self._replaying = False
        if self._journal is not None:
            self._restore(self._journal)

    # The methods of UnstableBaselines' StepBuffer

    def add_trajectory(self, trajectory: Trajectory, player_id: int, env_id: str) -> None:
        """Add a trajectory that does not come from a collector."""
        with self._noted("add_trajectory", trajectory, player_id, env_id):
            self.buffer.add_trajectory(trajectory, player_id, env_id)
        self._changed.set()

    def add_player_trajectory(self, player_traj: Trajectory, env_id: str) -> None:
        """``add_trajectory`` under its newer name."""
        self.add_trajectory(player_traj, player_traj.pid, env_id)

    def get_batch(self, batch_size: int) -> list[Any]:
        """Draw and remove a random batch at once, for code that trains without selfplay's learner."""
        with self._noted("get_batch", batch_size):
            return self.buffer.get_batch(batch_size)

    def size(self) -> int:
        """Return the number of steps stored, including those of games that are not sorted in yet."""
        return self.buffer.size() + sum(len(t.steps) for game in self._waiting for t in game.trajectories)

    def clear(self) -> None:
        """Remove everything that is stored."""
        with self._noted("clear"):
            self._clear()

    def _clear(self) -> None:
        self._sort_in_waiting()
        self.buffer.clear()

    def stop(self) -> None:
        """Tell collectors to stop. Stored steps stay."""
        self.stopped = True
        self._changed.set()

    def fail(self, reason: str) -> None:
        """Announce that no more games will come: calls that wait for a batch fail with ``reason``."""
        self.failure = reason
        self._changed.set()

    def continue_collection(self) -> bool:
        """Whether games are still wanted."""
        return not self.stopped

    # Games

    def add_games(self, games: Sequence[FinishedGame]) -> bool:
        """Accept games; known ones change nothing. Return whether more are wanted.

        Raises:
            SelfplayError: a transform produced a reward that is not a finite number.
        """
        new = Games(game for game in games if game.index not in self.seen)
        if isinstance(games, Games) and len(new) == len(games):
            new = games  # packed already
        if new:
            with self._noted("add_games", new.packed):
                self._add_games(new)
            self._changed.set()
        return not self.stopped

    def _add_games(self, games: Games) -> None:
        for game in games:
            self.seen.add(game.index)
            if game.rollout is not None:
                self._to_log.append(game)
            if game.error is not None:
                self._failed.append(game.error)
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

    # Batches

    async def draw(self, update: int, demand: Demand, wait: float = 5.0) -> Drawn | None:
        """Return the batch of ``update`` (from 1) when it is ready; ``None`` after ``wait`` seconds.

        The batch of the update that was drawn last is returned unchanged.

        Raises:
            SelfplayError: too many games failed, none of their steps can be trained on, or no more will come.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not (self._has_drawn(update) or self._is_ready(demand) or self.failure):
                    self._changed.clear()
                    await self._changed.wait()
        if self._has_drawn(update):
            return self._drawn
        if self.failure is not None:
            raise SelfplayError(self.failure)
        if not self._is_ready(demand):
            return None
        self._check_failures(demand)
        with self._noted("draw", update, demand.batch_size):
            drawn = self._draw(update, demand.batch_size)
        self._write_rollouts(update)
        if not drawn.steps and not drawn.dropped:
            raise SelfplayError("no step of this update's games can be trained on; look at the rollouts")
        return drawn

    async def ready(self, update: int, demand: Demand, wait: float = 5.0) -> Ready | None:
        """Draw the batch of ``update`` when it is ready, and return its size; otherwise as :meth:`draw`."""
        drawn = await self.draw(update, demand, wait)
        return None if drawn is None else Ready(len(drawn.steps), drawn.dropped, drawn.games)

    def _has_drawn(self, update: int) -> bool:
        return self._drawn is not None and self._drawn.update == update

    def _is_ready(self, demand: Demand) -> bool:
        waiting = sum(len(game.trajectories) for game in self._waiting)
        enough = demand.entries is not None and self.buffer.entries() + waiting >= demand.entries
        games = len(self.seen) - self._games_at_last_draw
        return enough or (demand.games is not None and games >= demand.games)

    def _draw(self, update: int, batch_size: int | None) -> Drawn:
        self.learned = self.buffer.batches = update - 1  # lower than before where the learner went back
        self._sort_in_waiting()
        before = self.buffer.dropped_stale
        if self.max_staleness is not None:
            self.buffer.drop_stale(update - 1, self.max_staleness)
        stored = self.buffer.entries()
        batch = self.buffer.get_batch(min(batch_size or stored, stored)) if stored else []
        steps = [step for part in batch for step in (part if isinstance(part, list) else [part])]
        drawn = Drawn(update, steps, self.buffer.dropped_stale - before, len(self.seen))
        self._drawn = drawn if steps else None
        if not steps:
            self._consumed = len(self.seen)
        self._failed = []
        self._games_at_last_draw = len(self.seen)
        return drawn

    def learned_batch(self, update: int) -> int:
        """Record that the learner has made and saved ``update``: its batch is no longer needed.

        Returns how many training games are consumed: learned, or left over by a draw that gave no batch.
        """
        if update > self.learned:
            with self._noted("learned_batch", update):
                self._learned_batch(update)
            self._save()
        return self._consumed

    def _learned_batch(self, update: int) -> None:
        self.learned = update
        if self._drawn is not None:
            self._consumed = self._drawn.games
        self._drawn = None

    def forget_after(self, version: int) -> int:
        """Forget what the versions after ``version`` played and drew: the learner lost them.

        Everything stored is removed and counted as cleared, and all games that have ended are consumed, so
        that as many others may be played. The batch of the next update stays if it is drawn: then the buffer
        never knew the lost version. A repeated call changes nothing.

        Returns:
            The update of the newest batch that is left, learned or drawn.
        """
        if version < self.learned:
            with self._noted("forget_after", version):
                self._forget_after(version)
        return self.learned + 1 if self._has_drawn(self.learned + 1) else self.learned

    def _forget_after(self, version: int) -> None:
        buffer, drawn = self.buffer, self._drawn.steps if self._drawn is not None else []
        waiting = self.size() - buffer.size()
        buffer.clear()
        buffer.added += waiting
        buffer.sampled -= len(drawn)
        buffer.cleared += waiting + len(drawn)
        self.learned = buffer.batches = version
        self._waiting, self._to_log, self._drawn = [], [], None
        self._forget_failures()

    def _save(self) -> None:
        """Start the journal afresh: batches that were learned are no longer needed."""
        if self._journal is None or self._journal.is_writing:
            return
        games: dict[str, list[Any]] = {
            "groups": self.buffer.stored_groups(),
            "waiting": list(self._waiting),
            "to_log": list(self._to_log),
        }
        self._journal.snapshot(self.state_dict(), games)

    def _check_failures(self, demand: Demand) -> None:
        games, failed = len(self.seen) - self._games_at_last_draw, len(self._failed)
        if failed > demand.failed_share * max(games, 1):
            reason = self._failed[-1]
            with self._noted("forget_failures"):
                self._forget_failures()  # a resumed run plays others in their place
            raise SelfplayError(f"{failed} of {games} games failed; the last: {reason}")

    def _forget_failures(self) -> None:
        self._failed = []
        self._games_at_last_draw = self._consumed = len(self.seen)

    def _write_rollouts(self, update: int) -> None:
        games = sorted(self._to_log, key=lambda game: (game.error is not None, game.index))
        self._to_log = []
        if self._rollout_log is not None:
            self._rollout_log.write(update, [game.rollout for game in games if game.rollout is not None])

    # State

    def counts(self) -> dict[str, int]:
        """Return the account of all steps; those not sorted in yet count as added and stored."""
        counts = self.buffer.counts()
        waiting = self.size() - self.buffer.size()
        return {**counts, "added": counts["added"] + waiting, "stored": counts["stored"] + waiting}

    def games(self) -> int:
        """Return the number of training games that have ended."""
        return len(self.seen)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the journal, without games and without a batch that is not learned."""
        return {
            "buffer": self.buffer.state_dict(with_steps=False),
            "seen": self.seen.state_dict(),
            "learned": self.learned,
            "failed": self._failed,
            "games_at_last_draw": self._games_at_last_draw,
            "consumed": self._consumed,
        }

    def _noted(self, method: str, *args: Any) -> AbstractContextManager[None]:
        """Note a call in the journal; the body executes it."""
        if self._journal is None or self._replaying:
            return nullcontext()
        return self._journal.noted([method, *args])

    def _restore(self, journal: Journal) -> None:
        state, entries = journal.load()
        self._replaying = True
        if state is not None:
            self.buffer.load_state_dict(state["buffer"] | {"groups": state["groups"]})
            self.seen = NumberSet.from_state(state["seen"])
            self.learned = state["learned"]
            self._waiting = msgspec.convert(state["waiting"], list[FinishedGame], strict=False)
            self._to_log = msgspec.convert(state["to_log"], list[FinishedGame], strict=False)
            self._failed = state["failed"]
            self._games_at_last_draw = state["games_at_last_draw"]
            self._consumed = state["consumed"]
        journal.replay(entries, lambda entry: self._repeat(entry[0], entry[1:]))
        self._replaying = False

    def _repeat(self, method: str, args: list[Any]) -> None:
        if method == "add_games":
            self._add_games(unpacked_games(msgspec.convert(args[0], bytes)))
        elif method == "add_trajectory":
            trajectory = msgspec.convert(args[0], Trajectory, strict=False)
            self.buffer.add_trajectory(trajectory, args[1], args[2])
        elif method == "draw":
            self._draw(args[0], args[1])
            self._write_rollouts(args[0])
        elif method == "get_batch":
            self.buffer.get_batch(args[0])
        elif method == "learned_batch":
            self._learned_batch(args[0])
        elif method == "forget_failures":
            self._forget_failures()
        elif method == "forget_after":
            self._forget_after(args[0])
        else:
            self._clear()
