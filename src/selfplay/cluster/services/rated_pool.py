"""RatedPool: the pool of a cluster, whose members and ratings are kept in a journal."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from selfplay.cluster.engines.api_models import refuse_credentials
from selfplay.cluster.services import pool_entries as entries
from selfplay.cluster.services.journaled import Journaled
from selfplay.cluster.services.league_turns import LeagueTurn
from selfplay.cluster.services.pool_state import PoolState
from selfplay.core.adapters import TRAINED
from selfplay.population.league import BuildLeague
from selfplay.population.model_pool import ModelPool
from selfplay.population.pool_members import checkpoint_uid
from selfplay.population.sampling_rule import SamplingRule
from selfplay.training.single_writer import Epoch


class RatedPool:
    """The part of :class:`PoolService` for members and ratings.

    Args:
        sample_mode, max_active_lora, lag_range, seed, rule: as for :class:`ModelPool`.
        policies: the policies.
        build_league: builds the run's league, if it has one.
        directory: the journal's directory; ``None`` keeps no journal.
        epoch: the run's epoch; see :class:`Journal`.
    """

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        lag_range: tuple[int, int],
        policies: Sequence[str],
        *,
        seed: int,
        rule: SamplingRule | None,
        build_league: BuildLeague | None,
        directory: str | None,
        epoch: Epoch | None,
    ) -> None:
        pool = ModelPool(sample_mode, max_active_lora, None, lag_range, seed, rule)
        for policy in policies:
            pool.add_policy(policy)
        league = None if build_league is None else build_league(pool)
        self._kept = Journaled(PoolState(pool, policies, league), directory, epoch, entries.PoolEntry)
        self._changed = asyncio.Event()

    @property
    def state(self) -> PoolState:
        """The state; any call raises a SelfplayError if it cannot be restored."""
        return self._kept.state

    def check(self) -> None:
        """Return if the service can work; raise the SelfplayError if its state cannot be restored."""
        _ = self.state

    @property
    def pool(self) -> ModelPool:
        """The members."""
        return self.state.pool

    def add_checkpoint(self, path: str | None, iteration: int, policy: str = TRAINED) -> str:
        """Register a checkpoint; see :meth:`ModelPool.add_checkpoint`. A repeated call changes nothing.

        Raises:
            InputError: another checkpoint of the policy has this iteration.
        """
        uid = checkpoint_uid(iteration, policy)
        if not self.state.knows(uid, path, "checkpoint"):
            self._kept.do(entries.AddCheckpoint(path, iteration, policy))
            self._changed.set()
        return uid

    def add_fixed(
        self,
        name: str,
        prior_mu: float = 25.0,
        *,
        kind: Literal["fixed", "script"] = "fixed",
        active: bool = True,
    ) -> str:
        """Register a model that is not trained; see :meth:`ModelPool.add_fixed`.

        A repeated call changes nothing.

        Raises:
            InputError: the name contains a password, or a query, which may contain a key.
        """
        refuse_credentials(name, "name")
        uid = f"fixed-{name}"
        if not self.state.knows(uid, name, kind):
            self._kept.do(entries.AddFixed(name, prior_mu, kind, active))
        return uid

    def add_policy(self, uid: str) -> str:
        """Register a policy's running average, which evaluations play. A repeated call changes nothing."""
        if self.pool.ckpt_path(uid) is None:
            self._kept.do(entries.AddPolicy(uid))
        return uid

    def freeze_exploiters(self, step: int, paths: dict[str, str | None]) -> LeagueTurn:
        """Freeze the exploiters of a league that are due after update ``step``; return what was done.

        All games of the update have ended, and its weights are not published. A repeated call changes
        nothing, whatever its paths.

        Args:
            step: the update.
            paths: the adapter that training has produced by now, by player.
        """
        if max(self.state.turn.step, self.state.weights.step) < step:
            self._kept.do(entries.FreezeExploiters(step, paths))
            self._changed.set()
        return self.state.turn

    def current_uid(self, policy: str = TRAINED) -> str | None:
        """Return the uid of the latest checkpoint of a policy."""
        return self.pool.current_uid(policy)

    def latest_ckpt(self) -> str | None:
        """Return the uid of the latest checkpoint, like :meth:`current_uid`."""
        return self.pool.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return (path or name, kind) of a model; ``None`` for an unknown uid."""
        return self.pool.ckpt_path(uid)

    def sample(self, uid_me: str) -> str:
        """Choose an opponent by the sample mode."""
        uid: str = self._kept.do(entries.Sample(uid_me))
        return uid

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: Sequence[str], env_id: str
    ) -> None:
        """Rate a two-player game that does not come from a collector."""
        self._kept.do(entries.RateGame(uid_me, uid_opp, final_reward, list(action_seq), env_id))

    def push_match(self, step: int, size: int, games: list[tuple[str, str, float, str]]) -> None:
        """Rate the two-player games of an evaluation, (uid, other uid, reward, environment) each, once.

        An update that is measured again with more games gives only those that are not rated yet.

        Args:
            step: the update that is measured.
            size: how many games its matches have; an evaluation of a known step and size changes nothing.
            games: the games that are to be rated.
        """
        if (step, size) not in self.state.ledger.matches:
            self._kept.do(entries.RateMatch(step, size, games))

    def snapshot(self) -> dict[str, Any]:
        """Return the pool as JSON-able data, for display."""
        return self.pool.snapshot()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the journal, without the games."""
        return self.state.state_dict()
