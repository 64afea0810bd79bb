"""PoolService: the model pool of a cluster, which also hands out the games and records the result of each.

Everything that decides which game is next is in one place, so collectors have no state: one that is killed
registers again, and the games it had are handed out again.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from selfplay.cluster.engines.api_models import refuse_credentials
from selfplay.cluster.engines.host import AdapterRef
from selfplay.cluster.services.games_in_flight import GameResult, GamesInFlight, PlaySettings
from selfplay.cluster.services.journal import Journal
from selfplay.collection.scheduler import GameScheduler, Job
from selfplay.core import InputError, SelfplayError
from selfplay.core.adapters import BASE
from selfplay.population.environment_samplers import WeightedEnvSampler
from selfplay.population.model_pool import ModelPool
from selfplay.training.epoch import Epoch

SNAPSHOT_EVERY = 500
"""Entries of the journal after which a snapshot may replace them."""


@dataclass(frozen=True)
class Jobs:
    """An answer to a collector: games to play, and the adapters that play them.

    Attributes:
        jobs: the games.
        policy: the newest weights, also for games in flight.
        adapters: the adapter behind each other name in the jobs.
        stopped: play has ended; games in flight are to be abandoned.
    """

    jobs: list[Job]
    policy: AdapterRef
    adapters: dict[str, AdapterRef] = field(default_factory=dict)
    stopped: bool = False

    def __reduce__(self) -> "tuple[Callable[[bytes], Jobs], tuple[bytes]]":
        """Serialise as msgpack: Ray's own serialisation inspects every object."""
        return _unpacked_jobs, (msgspec.msgpack.encode(self),)


def _unpacked_jobs(packed: bytes) -> Jobs:
    return _JOBS.decode(packed)


_JOBS = msgspec.msgpack.Decoder(Jobs)


class PoolService:
    """See the module. Its methods run one at a time on one event loop, except those that wait.

    Args:
        sample_mode, max_active_lora, tracker, lag_range, seed: as for :class:`ModelPool`; the tracker is a
            handle.
        directory: the journal's directory; ``None`` keeps no journal.
        epoch: the run's epoch; see :class:`Journal`.
    """

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: Any = None,
        lag_range: tuple[int, int] = (1, 7),
        *,
        seed: int = 0,
        directory: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self.pool = ModelPool(sample_mode, max_active_lora, None, lag_range, seed)
        self.pool.add_policy()
        self.tracker = tracker
        self.ledger = GamesInFlight()
        self.settings: PlaySettings | None = None
        self.scheduler: GameScheduler | None = None
        self.policy = AdapterRef("default", 0, None)
        self.stopped = False
        self._last_answer: dict[str, tuple[int, Jobs]] = {}
        self._registrations: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._journal = None if directory is None else Journal(Path(directory), epoch)
        self._replaying = False
        if self._journal is not None:
            self._restore(self._journal)

    # Members, with the methods of UnstableBaselines' ModelPool

    def add_checkpoint(self, path: str | None, iteration: int) -> str:
        """Register a checkpoint; see :meth:`ModelPool.add_checkpoint`. A repeated call changes nothing.

        Raises:
            InputError: another checkpoint has this iteration.
        """
        uid = f"ckpt-{iteration}"
        if self.pool.ckpt_path(uid) == (path, "checkpoint"):
            return uid
        with self._noted("add_checkpoint", path, iteration):
            self._add_checkpoint(path, iteration)
        self._wake()
        return uid

    def _add_checkpoint(self, path: str | None, iteration: int) -> None:
        self._rate_held_games()
        self.pool.add_checkpoint(path, iteration)

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
        if self.pool.ckpt_path(uid) == (name, kind):
            return uid
        with self._noted("add_fixed", name, prior_mu, kind=kind, active=active):
            self.pool.add_fixed(name, prior_mu, kind=kind, active=active)
        return uid

    def add_policy(self, uid: str) -> str:
        """Register the policy's running average, which evaluations play. A repeated call changes nothing."""
        if self.pool.ckpt_path(uid) is None:
            with self._noted("add_policy", uid):
                self.pool.add_policy(uid)
        return uid

    def current_uid(self) -> str | None:
        """Return the uid of the latest checkpoint."""
        return self.pool.current_uid()

    def latest_ckpt(self) -> str | None:
        """Return the uid of the latest checkpoint, like :meth:`current_uid`."""
        return self.pool.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return (path or name, kind) of a model; ``None`` for an unknown uid."""
        return self.pool.ckpt_path(uid)

    def sample(self, uid_me: str) -> str:
        """Choose an opponent by the sample mode."""
        with self._noted("sample", uid_me):
            return self.pool.sample(uid_me)

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: Sequence[str], env_id: str
    ) -> None:
        """Rate a two-player game that does not come from a collector."""
        with self._noted("push_game_outcome", uid_me, uid_opp, final_reward, list(action_seq), env_id):
            self.pool.push_game_outcome(uid_me, uid_opp, final_reward, action_seq, env_id)

    def push_match(self, step: int, games: list[tuple[str, str, float, str]]) -> None:
        """Rate the two-player games of an evaluation, (uid, other uid, reward, environment) each, once.

        A match of a known ``step`` changes nothing.
        """
        if step in self.ledger.matches:
            return
        with self._noted("push_match", step, games):
            self._push_match(step, games)

    def _push_match(self, step: int, games: list[tuple[str, str, float, str]]) -> None:
        self.ledger.matches.add(step)
        for uid_me, uid_opp, reward, env_id in games:
            self.pool.push_game_outcome(uid_me, uid_opp, reward, [], env_id)

    def snapshot(self) -> dict[str, Any]:
        """Return the pool as JSON-able data, for display."""
        return self.pool.snapshot()

    # Weights

    def publish(self, path: str | None, version: int, consumed: int = 0) -> None:
        """Announce the policy's newest weights: from now on they answer, also in games in flight.

        ``consumed`` games of the run were learned or too old: as many others may start. The version goes
        back if the newest one that was saved is damaged.
        """
        consumed = max(consumed, self.ledger.consumed)
        new = AdapterRef("default", version, path)
        if (new, consumed) == (self.policy, self.ledger.consumed):
            return
        with self._noted("publish", path, version, consumed):
            self._publish(path, version, consumed)
        self._wake()
        self._tell_tracker()
        self._snapshot_if_long()

    def _publish(self, path: str | None, version: int, consumed: int) -> None:
        self._rate_held_games()
        self.policy, self.ledger.consumed = AdapterRef("default", version, path), consumed

    def latest_version(self) -> int:
        """Return the highest version of the policy and its checkpoints."""
        checkpoints = [one.iteration or 0 for one in self.pool.opponents()]
        return max(self.policy.version, *checkpoints)

    def forget_after(self, version: int) -> None:
        """Forget the checkpoints and matches of later versions, which the learner lost and makes again.

        Games against such a checkpoint get another opponent, so no collector may be playing. A repeated call
        changes nothing.
        """
        with self._noted("forget_after", version):
            self._forget_after(version)

    def _forget_after(self, version: int) -> None:
        self._rate_held_games()
        removed = self.pool.forget_after(version)
        self.ledger.matches = {step for step in self.ledger.matches if step <= version}
        if self.scheduler is not None:
            train_job = self.scheduler.train_job
            self.ledger.replace(lambda job: train_job(job.meta.index) if removed & {*job.uids} else job)

    async def newest(self, known_version: int, wait: float = 5.0) -> Jobs:
        """Return the newest weights once they change, or play ends, or ``wait`` seconds pass."""
        await self._until(lambda: self.policy.version != known_version, wait)
        return Jobs([], self.policy, stopped=self.stopped)

    def paths_in_use(self) -> list[str]:
        """Return the adapters still in use: by the policy, by checkpoints not retired, by games in flight."""
        uids = {*self.pool.kept_checkpoints(), *self.ledger.uids()}
        paths = {self.policy.path} | {(self.pool.ckpt_path(uid) or (None,))[0] for uid in uids}
        return sorted(path for path in paths if path is not None)

    # Games

    def register(self, collector: str, settings: PlaySettings) -> int:
        """Register a collector, or register it again after a kill; return how many games it had.

        Raises:
            InputError: an evaluation opponent is not in the pool, or another collector has other settings.
        """
        if self.settings not in (None, settings):
            raise InputError(
                "collector", "another collector has other settings", "Give all of them the same."
            )
        known = {one.uid for one in self.pool.opponents()}
        for _, uid in settings.evaluation:
            if uid not in known:
                raise InputError("evaluation_opponent", f"{uid} is not in the pool", "Call add_fixed first.")
        with self._noted("register", collector, settings):
            return self._register(collector, settings)

    def _register(self, collector: str, settings: PlaySettings) -> int:
        if self.scheduler is None:
            self.settings = settings
            self.scheduler = GameScheduler(
                self.pool,
                WeightedEnvSampler(list(settings.environments), list(settings.weights)),
                evaluation=settings.evaluation,
                seed=settings.seed,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                pin_evaluation=settings.max_eval_games_per_ckpt is not None,
            )
        self._last_answer.pop(collector, None)
        self._registrations[collector] += 1
        lost = self.ledger.take_back(collector)
        self._wake()
        return lost

    async def next_jobs(
        self, collector: str, number: int, training: int, evaluation: int, wait: float = 5.0
    ) -> Jobs:
        """Hand out games, once there is at least one, or play ends, or ``wait`` seconds pass.

        A waiting collector is also woken when its own games end, because it can then take more.

        Args:
            collector: the calling collector, which must be registered.
            number: number of the request, rising by one. A repeated last request gets the same answer.
            training: maximum training games.
            evaluation: maximum evaluation games.
            wait: seconds to wait.

        Raises:
            SelfplayError: the collector is not registered.
        """
        if self.settings is None:
            raise SelfplayError(f"{collector} requests games but is not registered")
        last = self._last_answer.get(collector)
        if last is not None and last[0] == number:
            return last[1]
        registrations = self._registrations[collector]
        ended = self._ended[collector]
        await self._until(lambda: self._room(training, evaluation) or self._ended[collector] > ended, wait)
        if self._registrations[collector] != registrations:
            # The caller has been restarted; games handed to it now would be lost.
            return Jobs([], self.policy, stopped=True)
        if self.stopped or not self._room(training, evaluation):
            return Jobs([], self.policy, stopped=self.stopped)
        with self._noted("next_jobs", collector, number, training, evaluation):
            return self._next_jobs(collector, number, training, evaluation)

    def _next_jobs(self, collector: str, number: int, training: int, evaluation: int) -> Jobs:
        assert self.scheduler is not None
        jobs = self.ledger.hand_out_again(collector, "train", training)
        jobs += self.ledger.hand_out_again(collector, "eval", evaluation)
        trained = sum(job.meta.type == "train" for job in jobs)
        evaluated = len(jobs) - trained
        for _ in range(min(training - trained, self._training_left())):
            job = self.scheduler.next_train_job()
            self.ledger.hand_out(collector, job)
            jobs.append(job)
        for _ in range(min(evaluation - evaluated, self._evaluation_left())):
            job = self._next_eval_job()
            self.ledger.hand_out(collector, job)
            jobs.append(job)
        answer = Jobs(jobs, self.policy, self._adapters_of(jobs))
        self._last_answer[collector] = (number, answer)
        return answer

    def _next_eval_job(self) -> Job:
        assert self.scheduler is not None
        current = self.pool.current_uid() or ""
        place = self.ledger.evaluated.get(current, 0)
        self.ledger.evaluated[current] = place + 1
        pinned = self.scheduler.pin_evaluation
        return self.scheduler.next_eval_job(place if pinned else None)

    def finish(self, results: list[GameResult]) -> None:
        """Record the results of games. Results that are already known change nothing."""
        new = [one for one in results if one.name in self.ledger.in_flight]
        if not new:
            return
        collectors = [self.ledger.in_flight[one.name][0] for one in new]
        with self._noted("finish", new):
            self._finish(new)
        self._ended.update(collectors)
        self._snapshot_if_long()
        self._wake()

    def _finish(self, results: list[GameResult]) -> None:
        for result in results:
            job = self.ledger.end(result)
            if job is None or result.status != "finished":
                continue
            if self._in_lockstep() and job.meta.type == "train":
                self.ledger.unrated.append((job, result))
            else:
                self._rate(job, result)

    async def settled(self, wait: float = 5.0) -> bool:
        """Wait until every training game has ended; outside lockstep return at once, as games always run."""
        await self._until(lambda: not self._in_lockstep() or not self.ledger.accounts.in_flight, wait)
        return not self._in_lockstep() or not self.ledger.accounts.in_flight

    def _rate_held_games(self) -> None:
        """Rate the games of an update in the order of their numbers; in lockstep, once all have ended.

        Draws from the pool and ratings then do not depend on which game ended first.
        """
        for job, result in sorted(self.ledger.unrated, key=lambda one: one[0].meta.index):
            self._rate(job, result)
        self.ledger.unrated = []

    def _rate(self, job: Job, result: GameResult) -> None:
        self.pool.push_result(list(job.uids), result.rewards, job.spec.env_id, result.action_seq)

    def _in_lockstep(self) -> bool:
        settings = self.settings
        return settings is not None and settings.games_per_step is not None and settings.max_staleness == 0

    def stop(self) -> None:
        """End play."""
        if not self.stopped:
            with self._noted("stop"):
                self.stopped = True
        self._wake()

    def resume(self) -> None:
        """Resume play after a :meth:`stop`."""
        if self.stopped:
            with self._noted("resume"):
                self.stopped = False

    def accounts(self) -> dict[str, int]:
        """Return the account of all games.

        ``replayed`` games were restarted because their collector was lost; ``consumed`` ones were learned or
        were too old to be learned.
        """
        ledger, accounts = self.ledger, self.ledger.accounts
        more = {"in_flight": accounts.in_flight, "replayed": ledger.replayed, "consumed": ledger.consumed}
        return accounts.figures() | more

    def checkpoint_summary(self) -> dict[str, Any]:
        """Return the pool and the accounts, JSON-able, as in a checkpoint of a run in one process."""
        return {"pool": self.pool.state_dict(), "accounts": self.accounts()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the journal, without the games."""
        return {
            "pool": self.pool.state_dict(),
            "ledger": replace(self.ledger, in_flight={}, again=[], unrated=[]),
            "settings": self.settings,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "policy": self.policy,
            "last_answer": self._last_answer,
            "stopped": self.stopped,
        }

    # Helpers

    def _room(self, training: int, evaluation: int) -> bool:
        kinds = {job.meta.type for job in self.ledger.again}
        train = training > 0 and ("train" in kinds or self._training_left() > 0)
        return train or (evaluation > 0 and ("eval" in kinds or self._evaluation_left() > 0))

    def _training_left(self) -> int:
        assert self.settings is not None
        allowed = self.settings.training_allowed(self.ledger.consumed)
        return 1 << 30 if allowed is None else max(0, allowed - self.ledger.accounts.started)

    def _evaluation_left(self) -> int:
        assert self.settings is not None
        if not self.settings.evaluation:
            return 0
        left = 1 << 30
        if self.settings.eval_games_per_step is not None:
            allowed = self.settings.eval_games_per_step * (self.policy.version + 1)
            left = allowed - self.ledger.accounts.eval_started
        if self.settings.max_eval_games_per_ckpt is not None:
            most = self.settings.max_eval_games_per_ckpt * len(self.settings.evaluation)
            left = min(left, most - self.ledger.evaluated.get(self.pool.current_uid() or "", 0))
        return max(0, left)

    def _adapters_of(self, jobs: list[Job]) -> dict[str, AdapterRef]:
        adapters = {}
        for uid in {uid for job in jobs for uid in job.uids}:
            path, kind = self.pool.ckpt_path(uid) or (None, "")
            if kind == "checkpoint":
                version = max(0, int(uid.removeprefix("ckpt-")))
                adapters[uid if path else BASE] = AdapterRef(uid, version, path)
        return adapters

    async def _until(self, condition: Any, wait: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not (self.stopped or condition()):
                    self._changed.clear()
                    await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()

    def _tell_tracker(self) -> None:
        if self.tracker is None or self._replaying:
            return
        pool = self.pool
        ratings = {one.uid: {"mu": one.rating[0], "sigma": one.rating[1]} for one in pool.opponents()}
        self.tracker.log_model_pool.remote(pool.matches.counts(), ratings, pool.exploration.summary())

    def _noted(self, method: str, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        """Note a call in the journal; the body executes it."""
        if self._journal is None or self._replaying:
            return nullcontext()
        return self._journal.noted([method, args, kwargs])

    def _snapshot_if_long(self) -> None:
        journal = self._journal
        if journal is None or self._replaying or journal.is_writing or not journal.is_long(SNAPSHOT_EVERY):
            return
        ledger = self.ledger
        games: dict[str, list[Any]] = {
            "in_flight": list(ledger.in_flight.items()),
            "again": list(ledger.again),
            "unrated": list(ledger.unrated),
        }
        journal.snapshot(self.state_dict(), games)

    def _restore(self, journal: Journal) -> None:
        state, entries = journal.load()
        self._replaying = True
        if state is not None:
            self.pool.load_state_dict(state["pool"])
            if state["settings"] is not None:
                self._register("", msgspec.convert(state["settings"], PlaySettings))
                assert self.scheduler is not None
                self.scheduler.load_state_dict(state["scheduler"])
            games = {"again": state["again"], "unrated": state["unrated"]}
            games["in_flight"] = dict(state["in_flight"])
            self.ledger = msgspec.convert(state["ledger"] | games, GamesInFlight)
            self.policy = AdapterRef(**state["policy"])
            self._last_answer = msgspec.convert(state["last_answer"], dict[str, tuple[int, Jobs]])
            self.stopped = state["stopped"]
        journal.replay(entries, lambda entry: self._repeat(*entry))
        self._replaying = False

    def _repeat(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        if method == "register":
            self._register(args[0], msgspec.convert(args[1], PlaySettings))
        elif method == "next_jobs":
            self._next_jobs(*args)
        elif method == "finish":
            self._finish(msgspec.convert(args[0], list[GameResult]))
        elif method in ("add_checkpoint", "publish", "push_match", "forget_after"):
            getattr(self, f"_{method}")(*args)
        else:
            getattr(self, method)(*args, **kwargs)
