"""PoolService: the model pool of a run, which also hands out the games and records the result of each.

Everything that decides which game is next is in one place, so collectors have no state: one that is killed
registers again, and the games it had are handed out again. :class:`PoolState` decides; the service keeps its
journal, and lets calls wait.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparring.collection import pool_state as entries
from sparring.collection.games_in_flight import GamesInFlight, PlaySettings
from sparring.collection.journal import Journaled, JournaledService
from sparring.collection.pool_state import Jobs, LeagueTurn, PoolState
from sparring.collection.results import GameResult
from sparring.core import InputError, SparringError
from sparring.core.adapters import TRAINED, Weights
from sparring.core.files import Epoch
from sparring.population.evolution import Selection
from sparring.population.league import BuildLeague
from sparring.population.model_pool import ModelPool
from sparring.population.opponent_choice import SamplingRule
from sparring.population.pool_members import checkpoint_uid
from sparring.population.ratings import PRIOR_MU
from sparring.population.standings import Standings, standings

NOBODY = Selection()
SNAPSHOT_EVERY = 500
"""Entries of the journal after which a snapshot may replace them."""


@dataclass(frozen=True)
class Published:
    """The accounts and the standings of the pool when weights were announced."""

    accounts: dict[str, int]
    standings: Standings


@dataclass(frozen=True)
class Copies:
    """The frozen copies of policies.

    Attributes:
        served: those that play now: the directory of the adapter, by uid.
        kept: the adapters that are in use or may be needed again; their files stay.
    """

    served: dict[str, str]
    kept: list[str]


class PoolService(JournaledService[PoolState]):
    """The module's pool. Its methods run one at a time on one event loop, except those that wait.

    Args:
        sample_mode, max_active_lora, tracker, lag_range, seed, rule: as for :class:`ModelPool`; the tracker
            is a handle.
        policies: the policies that play and learn.
        build_league: builds the run's league, if it has one.
        directory: the journal's directory; ``None`` keeps no journal.
        epoch: the run's epoch; once it is over, writes fail.
    """

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: Any = None,
        lag_range: tuple[int, int] = (1, 7),
        policies: Sequence[str] = (TRAINED,),
        *,
        seed: int = 0,
        rule: SamplingRule | None = None,
        build_league: BuildLeague | None = None,
        directory: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        pool = ModelPool(sample_mode, max_active_lora, None, lag_range, seed, rule)
        for policy in policies:
            pool.add_policy(policy)
        league = None if build_league is None else build_league(pool)
        state = PoolState(pool, policies, league)
        super().__init__(Journaled(state, directory, epoch, entries.PoolEntry))
        self.tracker = tracker
        self._ended: Counter[str] = Counter()

    @property
    def pool(self) -> ModelPool:
        """The members."""
        return self.state.pool

    @property
    def ledger(self) -> GamesInFlight:
        """The games that were handed out."""
        return self.state.ledger

    @property
    def weights(self) -> Weights:
        """The newest weights."""
        return self.state.weights

    # Members

    def add_checkpoint(self, path: str | None, iteration: int, policy: str = TRAINED) -> str:
        """Register a checkpoint as :meth:`ModelPool.add_checkpoint`. A repeated call changes nothing."""
        uid = checkpoint_uid(iteration, policy)
        if not self.state.knows(uid, path, "checkpoint"):
            self._kept.do(entries.AddCheckpoint(path, iteration, policy))
            self._changed.set()
        return uid

    def add_fixed(
        self,
        name: str,
        prior_mu: float = PRIOR_MU,
        *,
        kind: Literal["fixed", "script"] = "fixed",
        active: bool = True,
        policy: str = "",
        path: str = "",
    ) -> str:
        """Register a model that is not trained, as :meth:`ModelPool.add_fixed`; once."""
        uid = f"fixed-{name}"
        if not self.state.knows(uid, path or name, kind):
            self._kept.do(entries.AddFixed(name, prior_mu, kind, active, policy, path))
        return uid

    def add_policy(self, uid: str) -> str:
        """Register a policy's running average, which evaluations play. A repeated call changes nothing."""
        if self.pool.ckpt_path(uid) is None:
            self._kept.do(entries.AddPolicy(uid))
        return uid

    def players_due(self, step: int) -> list[str]:
        """Return the players of the league that are to be frozen after update ``step``, by what they won.

        All games of the update have ended, and its weights are not published. None are due once
        :meth:`freeze_players` has been called for it.
        """
        league = self.state.league
        if league is None or self._has_turned(step):
            return []
        self._kept.do(entries.RateHeldGames())
        return league.due(step)

    def rivals(self, step: int, due: list[str]) -> list[list[str]]:
        """Return the players that are to be compared after update ``step``, in groups, beside those ``due``.

        There are none once :meth:`freeze_players` has been called for it.
        """
        league = self.state.league
        return [] if league is None or self._has_turned(step) else league.rivals(due, step)

    def freeze_players(
        self, step: int, paths: dict[str, str | None], selection: Selection = NOBODY
    ) -> LeagueTurn:
        """Freeze the players of the league that are due after update ``step``, with these adapters, and
        replace those that were selected.

        A repeated call changes nothing, whatever its paths and its selection.
        """
        if not self._has_turned(step):
            self._kept.do(entries.FreezePlayers(step, paths, selection))
            self._changed.set()
        return self.state.turn

    def _has_turned(self, step: int) -> bool:
        return max(self.state.turn.step, self.state.weights.step) >= step

    def current_uid(self, policy: str = TRAINED) -> str | None:
        """Return the uid of the latest checkpoint of a policy."""
        return self.pool.current_uid(policy)

    def latest_ckpt(self) -> str | None:
        """Return the uid of the latest checkpoint."""
        return self.pool.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return (path or name, kind) of a model; ``None`` for an unknown uid."""
        return self.pool.ckpt_path(uid)

    def push_match(self, step: int, size: int, games: list[tuple[str, str, float, str]]) -> None:
        """Rate the two-player games of an evaluation, (uid, other uid, reward, environment) each, once.

        ``size``: the games of a match. An evaluation of a known step and size changes nothing; one with more
        games gives only those that are not rated yet.
        """
        if (step, size) not in self.state.ledger.matches:
            self._kept.do(entries.RateMatch(step, size, games))

    def snapshot(self) -> dict[str, Any]:
        """Return the pool as JSON-able data, for display."""
        return self.pool.snapshot()

    # Weights

    def publish(self, weights: Weights, consumed: int = 0) -> Published:
        """Announce the newest weights: from now on they answer, also in games in flight.

        ``consumed`` games of the run were learned or too old: as many others may start. The weights go back
        if the newest update that was saved is damaged.
        """
        consumed = max(consumed, self.ledger.consumed)
        if (weights, consumed) != (self.weights, self.ledger.consumed):
            self._kept.do(entries.Publish(weights, consumed))
            self._changed.set()
            self._snapshot_if_long()
        self._tell_tracker()
        return Published(self.accounts(), standings(self.pool))

    def latest_step(self) -> int:
        """Return the newest update of the weights, the checkpoints and the league."""
        checkpoints = [one.iteration or 0 for one in self.pool.opponents()]
        return max(self.weights.step, self.state.turn.step, *checkpoints)

    def forget_after(self, step: int) -> None:
        """Forget the checkpoints and matches of later updates, which the learner lost and makes again.

        Games against such a checkpoint get another opponent, so no collector may be playing.
        """
        self._kept.do(entries.ForgetAfter(step))

    async def newest(self, known_step: int, wait: float = 5.0) -> Jobs:
        """Return the newest weights once they change, or play ends, or ``wait`` seconds pass."""
        await self._until(lambda: self.state.stopped or self.weights.step != known_step, wait)
        return Jobs([], self.weights, stopped=self.state.stopped)

    def paths_in_use(self) -> list[str]:
        """Return the adapters still in use: by policies, by checkpoints not retired, by games in flight."""
        uids = {*self.pool.kept_checkpoints(), *self.ledger.uids()}
        paths = {one.path for one in self.weights.adapters.values()}
        paths |= {(self.pool.ckpt_path(uid) or (None,))[0] for uid in uids}
        return sorted(path for path in paths if path is not None)

    def copies(self, in_play: Collection[str] = ()) -> Copies:
        """Return the copies that are to be served now, those ``in_play`` too, and the adapters in use."""
        members = self.pool.opponents()
        copies = [one for one in members if one.kind == "checkpoint" and one.path_or_name is not None]
        wanted = {*self.pool.active_checkpoints(), *self.ledger.uids(), *in_play}
        served = {one.uid: str(one.path_or_name) for one in copies if one.uid in wanted}
        newest = max((one.iteration or 0 for one in members if one.kind == "checkpoint"), default=0)
        # Should the newest update be lost, a resume serves again what retired with the newest copies.
        late = [one for one in copies if one.retired is None or one.retired >= newest]
        return Copies(served, sorted({*self.paths_in_use(), *(str(one.path_or_name) for one in late)}))

    def copies_of(self, step: int) -> list[str]:
        """Return the policies of which the pool has a copy of update ``step``."""
        copies = (one for one in self.pool.opponents() if one.kind == "checkpoint")
        return [one.policy for one in copies if one.iteration == step]

    def retired_by(self, step: int) -> list[str]:
        """Return the copies that were retired by update ``step``."""
        return [one.uid for one in self.pool.opponents() if one.retired is not None and one.retired <= step]

    # Games

    def register(self, collector: str, settings: PlaySettings, incarnation: str = "") -> int:
        """Register a collector, or register it again after a kill; return how many games it had.

        ``incarnation`` tells it from the process before, which may only have been cut off. Raises InputError
        if an evaluation opponent is not in the pool, or another collector has other settings.
        """
        queue = self.state.queue
        if queue is not None and queue.settings != settings:
            raise InputError(
                "collector", "another collector has other settings", "Give all of them the same."
            )
        known = {one.uid for one in self.pool.opponents()}
        for _, uid in settings.evaluation:
            if uid not in known:
                raise InputError("evaluation_opponent", f"{uid} is not in the pool", "Call add_fixed first.")
        lost: int = self._kept.do(entries.Register(collector, settings, incarnation))
        self._changed.set()
        return lost

    async def next_jobs(
        self,
        collector: str,
        number: int,
        training: int,
        evaluation: int,
        wait: float = 5.0,
        incarnation: str = "",
    ) -> Jobs:
        """Hand out games, once there is at least one, or play ends, or ``wait`` seconds pass.

        ``number`` rises with each request; a repeated last request gets the same answer. A waiting collector
        is also woken when its own games end, because it can then take more. An incarnation that another has
        replaced hears that play has ended: games handed to it would be lost. Raises SparringError if no
        collector is registered.
        """
        state = self.state
        if state.queue is None:
            raise SparringError(f"{collector} requests games but is not registered")
        ended = self._ended[collector]
        await self._until(
            lambda: (
                state.incarnations.get(collector) != incarnation
                or state.answered(collector, number) is not None
                or state.stopped
                or state.has_games(training, evaluation)
                or self._ended[collector] > ended
            ),
            wait,
        )
        if state.incarnations.get(collector) != incarnation:
            return Jobs([], self.weights, stopped=True)
        answer = state.answered(collector, number)  # also to the same request, which waited too
        if answer is not None:
            return answer
        if state.stopped or not state.has_games(training, evaluation):
            return Jobs([], self.weights, stopped=state.stopped)
        return self.hand_out(collector, number, training, evaluation)

    def hand_out(self, collector: str, number: int, training: int, evaluation: int) -> Jobs:
        """Hand out games now, perhaps none."""
        jobs: Jobs = self._kept.do(entries.HandOut(collector, number, training, evaluation))
        return jobs

    def finish(self, results: list[GameResult]) -> None:
        """Record the results of games. Results that are already known change nothing."""
        new = [one for one in results if one.name in self.ledger.in_flight]
        if not new:
            return
        collectors = [self.ledger.in_flight[one.name][0] for one in new]
        self._kept.do(entries.Finish(new))
        self._ended.update(collectors)
        self._snapshot_if_long()
        self._changed.set()

    async def settled(self, wait: float = 5.0) -> bool:
        """Wait until all games of an update have ended; outside lockstep return at once: games always run."""
        await self._until(self._is_settled, wait)
        return self._is_settled()

    def stop(self) -> None:
        """End play."""
        if not self.state.stopped:
            self._kept.do(entries.Stop())
        self._changed.set()

    def resume(self) -> None:
        """Resume play after a :meth:`stop`."""
        if self.state.stopped:
            self._kept.do(entries.Resume())

    def accounts(self) -> dict[str, int]:
        """Return the account of all games.

        ``replayed`` games were restarted because their collector was lost; ``consumed`` ones were learned or
        were too old. In mode ``meta-nash``, ``unplayed_pairs`` of active members have not finished a game.
        """
        ledger = self.ledger
        more = {"in_flight": ledger.going_on(), "replayed": ledger.replayed, "consumed": ledger.consumed}
        if self.pool.sample_mode == "meta-nash":
            more["unplayed_pairs"] = self.pool.unplayed_pairs()
        return ledger.accounts | more

    def checkpoint_summary(self) -> dict[str, Any]:
        """Return the pool and the accounts, JSON-able, as in a checkpoint of a run in one process.

        In lockstep the games of the last update are rated when it is published; their payoffs count already.
        """
        pool = self.pool.state_dict() | {"played": self.state.played().state_dict()}
        return {"pool": pool, "accounts": self.accounts()}

    def _is_settled(self) -> bool:
        state = self.state
        ended = not self.ledger.uids() and not state.has_games(0, 1)
        return ended or not state.in_lockstep

    def _tell_tracker(self) -> None:
        if self.tracker is not None:
            pool = self.pool
            self.tracker.log_model_pool.remote(
                pool.matches.counts(), pool.figures(), pool.exploration.summary()
            )

    def _snapshot_if_long(self) -> None:
        journal = self._kept.journal
        if journal is not None and journal.is_long(SNAPSHOT_EVERY):
            journal.snapshot(self.state.state_dict(), self.state.games())
