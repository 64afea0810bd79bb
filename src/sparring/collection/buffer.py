"""BufferService: the replay buffer of a run. It neither loses an accepted game nor hands it out twice.

Collectors send the same game again when they got no answer, and a killed collector's games are played again:
a game that is already known changes nothing. The learner requests the batch of an update by the update's
number and gets the same batch until it reports that it has learned it. Where the learner has lost an update,
the buffer forgets what that update's weights played.
"""

from collections.abc import Sequence

from sparring.collection import buffer_state as entries
from sparring.collection.buffer_state import BufferState, Demand, Drawn, FinishedGame, PackedGames, Ready
from sparring.collection.buffers import BaseBuffer
from sparring.collection.journal import Journaled, JournaledService
from sparring.collection.rollout_log import RolloutLog
from sparring.core import Rollout, SparringError
from sparring.core.errors import check_failures
from sparring.core.files import Epoch
from sparring.core.play import GameKind
from sparring.population.payoffs import NumberRanges

COUNTED_TOGETHER: tuple[tuple[GameKind, ...], ...] = (("train", "eval"), ("payoff",))
"""The kinds of games whose failures are counted together: an update has few evaluation games."""


class BufferService(JournaledService[BufferState]):
    """The module's buffer, which collectors and learner call.

    Args:
        buffer: the buffer, new and empty.
        max_staleness: steps that acted more versions ago than this are dropped; ``None`` keeps all.
        in_order: add the games of an update in the order of their numbers when the batch is drawn, so that
            the batch does not depend on which game finished first.
        directory: the journal's directory; ``None`` keeps no journal.
        rollouts: the directory that logged games are written to.
        epoch: the run's epoch; once it is over, writes fail.
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
        state = BufferState(buffer, max_staleness, in_order)
        super().__init__(Journaled(state, directory, epoch, entries.BufferEntry))
        self._rollout_log = RolloutLog(rollouts) if rollouts is not None else None
        self._epoch = epoch
        self._stopped = False
        self._failure: str | None = None

    @property
    def seen(self) -> NumberRanges:
        """The numbers of the training games that have ended."""
        return self.state.seen

    @property
    def learned(self) -> int:
        """The newest update that the learner has made."""
        return self.state.learned

    # Steps

    def size(self) -> int:
        """Return the number of stored steps, those of games that are not sorted in yet included."""
        return self.state.buffer.size() + self.state.waiting_steps()

    def stop(self) -> None:
        """Tell collectors to stop. Stored steps stay."""
        self._stopped = True
        self._changed.set()

    def fail(self, reason: str) -> None:
        """Announce that no more games will come: calls that wait for a batch fail with ``reason``."""
        self._failure = reason
        self._changed.set()

    def continue_collection(self) -> bool:
        """Whether games are still wanted."""
        return not self._stopped

    # Games

    def add_games(self, games: PackedGames | Sequence[FinishedGame]) -> bool:
        """Accept games; known ones change nothing. Return whether more are wanted.

        Raises:
            SparringError: a transform produced a reward that is not a finite number.
        """
        ended = self.state.ended
        if isinstance(games, PackedGames):
            if any(index in ended[kind] for kind, index in games.names):
                games = games.games()
            elif games.names:
                self._add(games.packed)
        if not isinstance(games, PackedGames):
            new = [game for game in games if game.index not in ended[game.kind]]
            if new:
                self._add(PackedGames(new).packed if self._kept.is_journaled else new)
        return not self._stopped

    def _add(self, games: bytes | list[FinishedGame]) -> None:
        self._kept.do(entries.AddGames(games))
        self._changed.set()

    async def draw(self, update: int, demand: Demand, wait: float = 5.0) -> Drawn | None:
        """Return the batch of ``update`` (from 1) when it is ready; ``None`` after ``wait`` seconds.

        A repeated call returns the same batch. Raises SparringError if too many games failed, none of their
        steps can be trained on, or no more will come.
        """
        state = self.state
        await self._until(
            lambda: state.has_drawn(update) or state.is_ready(demand) or self._failure is not None, wait
        )
        drawn = state.drawn
        if drawn is None or drawn.update != update:
            if self._failure is not None:
                raise SparringError(self._failure)
            if not state.is_ready(demand):
                return None
            self.check_failures(update, demand.failed_share)
            self._check_epoch()
            drawn = self._kept.do(entries.DrawBatch(update, demand.batch_size, dict(demand.versions)))
        self._write_rollouts()
        if not drawn.steps and not drawn.dropped:
            raise SparringError("no step of this update's games can be trained on; look at the rollouts")
        return drawn

    async def ready(self, update: int, demand: Demand, wait: float = 5.0) -> Ready | None:
        """Draw the batch of ``update`` when it is ready, and return its size; otherwise as :meth:`draw`."""
        drawn = await self.draw(update, demand, wait)
        return None if drawn is None else Ready(len(drawn.steps), drawn.dropped, drawn.games)

    def learned_batch(self, update: int) -> int:
        """Record that the learner has saved ``update``; return how many training games are consumed."""
        if update > self.learned:
            self._kept.do(entries.LearnedBatch(update))
            self._save()
        return self.state.consumed

    def forget_after(self, version: int) -> int:
        """Forget what the versions after ``version``, which the learner lost, played and drew.

        Everything stored is counted as cleared and all games that have ended as consumed, so that as many
        others may be played. The batch of the next update stays if it is drawn: then the buffer never knew
        the lost version.

        Returns:
            The update of the newest batch that is left, learned or drawn.
        """
        if version < self.learned:
            self._kept.do(entries.ForgetVersionsAfter(version))
        return self.learned + 1 if self.state.has_drawn(self.learned + 1) else self.learned

    def log_late(self, update: int) -> None:
        """Write the games that ended since the batch of ``update`` was drawn with those of that update.

        A checkpoint after the update then has them. For a buffer without a journal.
        """
        late = self.state.take_late()
        if late and self._rollout_log is not None:
            known = self._rollout_log.read(update) if update in self._rollout_log.steps() else []
            self._log(update, late, known)

    def counts(self) -> dict[str, int]:
        """Return the account of all steps; those not sorted in yet count as added and stored."""
        counts, waiting = self.state.buffer.counts(), self.state.waiting_steps()
        return {**counts, "added": counts["added"] + waiting, "stored": counts["stored"] + waiting}

    def games(self) -> int:
        """Return the number of training games that have ended."""
        return len(self.seen)

    def _save(self) -> None:
        if self._kept.journal is not None:
            self._kept.journal.snapshot(self.state.state_dict(), self.state.games())

    def check_failures(self, update: int, failed_share: float) -> None:
        """Raise a SparringError if too large a share failed since the last draw; payoff games count apart.

        The failed games are logged, and forgotten.
        """
        state = self.state
        for kinds in COUNTED_TOGETHER:
            failed = [reason for kind in kinds for reason in state.failed[kind]]
            try:
                check_failures(failed, sum(map(state.since_last_draw, kinds)), failed_share, "games")
            except SparringError:
                self._kept.do(entries.ForgetFailures(update))
                self._write_rollouts()
                raise

    def _write_rollouts(self) -> None:
        to_write = self.state.to_write
        for update in list(to_write):
            self._log(update, to_write[update])
            del to_write[update]

    def _log(self, update: int, games: list[FinishedGame], before: Sequence[Rollout] = ()) -> None:
        self._check_epoch()
        in_order = sorted(games, key=lambda game: (game.error is not None, game.kind, game.index))
        rollouts = [one.rollout for one in in_order if one.rollout is not None]
        if self._rollout_log is not None:
            self._rollout_log.write(update, [*before, *rollouts])

    def _check_epoch(self) -> None:
        if self._epoch is not None:
            self._epoch.check()
