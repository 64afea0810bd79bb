"""PoolService: the model pool of a cluster, which also hands out the games and knows what became of each.

Everything that decides who plays next is in one place, so collectors have no state: one that is killed asks
anew, and the games it had are handed out again.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from selfplay.collection.scheduler import UNTRAINED, GameScheduler, Job
from selfplay.core import InputError, SelfplayError
from selfplay.population.environment_samplers import WeightedEnvSampler
from selfplay.population.model_pool import ModelPool
from selfplay.runtime.ray.engine_host import AdapterRef
from selfplay.runtime.ray.game_ledger import GameLedger, GameResult, PlaySettings
from selfplay.runtime.ray.journal import Journal

MODES_WITHOUT_OPPONENTS = ("mirror", "fixed")
"""Modes in which no checkpoint is drawn."""
SNAPSHOT_EVERY = 500
"""Entries of the journal after which it is begun anew."""


@dataclass(frozen=True)
class Jobs:
    """An answer to a collector: games to play, and by whom.

    Attributes:
        jobs: the games.
        policy: the newest weights, for all that is under way too.
        adapters: what plays under each other name in the jobs.
        stopped: nothing is played any more; let go of what is under way.
    """

    jobs: list[Job]
    policy: AdapterRef
    adapters: dict[str, AdapterRef] = field(default_factory=dict)
    stopped: bool = False

    def __reduce__(self) -> "tuple[Callable[[bytes], Jobs], tuple[bytes]]":
        """They travel between processes as msgpack: Ray's own way looks at every object by itself."""
        return _unpacked_jobs, (msgspec.msgpack.encode(self),)


def _unpacked_jobs(packed: bytes) -> Jobs:
    return _JOBS.decode(packed)


_JOBS = msgspec.msgpack.Decoder(Jobs)


class PoolService:
    """See the module. Its methods run one at a time on one event loop, but for those that wait.

    Args:
        sample_mode, max_active_lora, tracker, lag_range, seed: as for :class:`ModelPool`; the tracker is a
            handle.
        directory: where the journal is kept; ``None`` keeps nothing.
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
    ) -> None:
        self.pool = ModelPool(sample_mode, max_active_lora, None, lag_range, seed)
        self.tracker = tracker
        self.ledger = GameLedger()
        self.settings: PlaySettings | None = None
        self.scheduler: GameScheduler | None = None
        self.policy = AdapterRef("default", 0, None)
        self.stopped = False
        self._last_answer: dict[str, tuple[int, Jobs]] = {}
        self._registrations: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._journal = None if directory is None else Journal(Path(directory))
        self._replaying = False
        if self._journal is not None:
            self._restore(*self._journal.load())

    # Members, as in seed 000

    def add_checkpoint(self, path: str | None, iteration: int) -> str:
        """Register a checkpoint; see :meth:`ModelPool.add_checkpoint`. Saying it again changes nothing.

        Raises:
            InputError: another checkpoint has this iteration.
        """
        uid = f"ckpt-{iteration}"
        if self.pool.ckpt_path(uid) == (path, "checkpoint"):
            return uid
        self._add_checkpoint(path, iteration)
        self._note("add_checkpoint", path, iteration)
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
        """Register a model that is not trained; see :meth:`ModelPool.add_fixed`. Again changes nothing."""
        uid = f"fixed-{name}"
        if self.pool.ckpt_path(uid) == (name, kind):
            return uid
        self.pool.add_fixed(name, prior_mu, kind=kind, active=active)
        self._note("add_fixed", name, prior_mu, kind=kind, active=active)
        return uid

    def current_uid(self) -> str | None:
        """Uid of the latest checkpoint."""
        return self.pool.current_uid()

    def latest_ckpt(self) -> str | None:
        """The same as :meth:`current_uid`."""
        return self.pool.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """(path or name, kind) of a model; ``None`` for an unknown uid."""
        return self.pool.ckpt_path(uid)

    def sample(self, uid_me: str) -> str:
        """Choose an opponent by the sample mode."""
        uid = self.pool.sample(uid_me)
        self._note("sample", uid_me)
        return uid

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: Sequence[str], env_id: str
    ) -> None:
        """Rate a two-player game that no collector played."""
        self.pool.push_game_outcome(uid_me, uid_opp, final_reward, action_seq, env_id)
        self._note("push_game_outcome", uid_me, uid_opp, final_reward, list(action_seq), env_id)

    def push_match(self, key: str, games: list[tuple[str, str, float, str]]) -> None:
        """Rate the two-player games of an evaluation, (uid, other uid, reward, environment) each, once.

        A match whose ``key`` is known changes nothing.
        """
        if key in self.ledger.matches:
            return
        self._push_match(key, games)
        self._note("push_match", key, games)

    def _push_match(self, key: str, games: list[tuple[str, str, float, str]]) -> None:
        self.ledger.matches.add(key)
        for uid_me, uid_opp, reward, env_id in games:
            self.pool.push_game_outcome(uid_me, uid_opp, reward, [], env_id)

    def snapshot(self) -> dict[str, Any]:
        """The pool as JSON-able data, for people."""
        return self.pool.snapshot()

    # Weights

    def publish(self, path: str | None, version: int, consumed: int = 0) -> None:
        """The policy's newest weights: from now on they answer, also in the games that are under way.

        ``consumed`` games of the run are learned or too old: as many may be started in their place.
        """
        consumed = max(consumed, self.ledger.consumed)
        new = AdapterRef("default", version, path)
        if version < self.policy.version or (new, consumed) == (self.policy, self.ledger.consumed):
            return
        self._publish(path, version, consumed)
        self._note("publish", path, version, consumed)
        self._wake()
        self._tell_tracker()
        self._snapshot_if_long()

    def _publish(self, path: str | None, version: int, consumed: int) -> None:
        self._rate_held_games()
        self.policy, self.ledger.consumed = AdapterRef("default", version, path), consumed

    async def newest(self, known_version: int, wait: float = 5.0) -> Jobs:
        """Wait until there are other weights than those known, or an end; after ``wait`` seconds answer."""
        await self._until(lambda: self.policy.version != known_version, wait)
        return Jobs([], self.policy, stopped=self.stopped)

    def paths_in_use(self) -> list[str]:
        """Adapters that may still be asked for: the policy's, checkpoints', those of games under way.

        Where checkpoints are drawn as opponents, one that is not active may become so again.
        """
        uids = {*self.pool.active_checkpoints(), *self.ledger.uids()}
        if self.pool.sample_mode not in MODES_WITHOUT_OPPONENTS:
            uids |= {one.uid for one in self.pool.opponents() if one.kind == "checkpoint"}
        current = self.pool.current_uid()
        if current is not None:
            uids.add(current)
        paths = {self.policy.path} | {(self.pool.ckpt_path(uid) or (None,))[0] for uid in uids}
        return sorted(path for path in paths if path is not None)

    # Games

    def register(self, collector: str, settings: PlaySettings) -> int:
        """A collector begins, or begins anew after it was killed; returns how many games it had.

        Raises:
            InputError: an evaluation opponent is not in the pool, or other collectors play something else.
        """
        if self.settings not in (None, settings):
            raise InputError("collector", "another plays other games", "Give all collectors the same.")
        known = {one.uid for one in self.pool.opponents()}
        for _, uid in settings.evaluation:
            if uid not in known:
                raise InputError("evaluation_opponent", f"{uid} is not in the pool", "Call add_fixed first.")
        lost = self._register(collector, settings)
        self._note("register", collector, settings)
        return lost

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
        """Hand out up to so many games; waits until there is at least one, an end, or ``wait`` seconds pass.

        Who waits without getting any is also answered when games of theirs end: they have more room then.

        Args:
            collector: who asks; it is registered.
            number: of the question, rising by one. The last one asked again is answered the same.
            training: most training games.
            evaluation: most evaluation games.
            wait: seconds.

        Raises:
            SelfplayError: the collector is not registered.
        """
        if self.settings is None:
            raise SelfplayError(f"{collector} asks for games but is not registered")
        last = self._last_answer.get(collector)
        if last is not None and last[0] == number:
            return last[1]
        registrations = self._registrations[collector]
        ended = self._ended[collector]
        await self._until(lambda: self._room(training, evaluation) or self._ended[collector] > ended, wait)
        if self._registrations[collector] != registrations:
            return Jobs([], self.policy, stopped=True)  # who asked is dead: its games would be lost
        if self.stopped or not self._room(training, evaluation):
            return Jobs([], self.policy, stopped=self.stopped)
        answer = self._next_jobs(collector, number, training, evaluation)
        self._note("next_jobs", collector, number, training, evaluation)
        return answer

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
        """Take in how games ended. What is known already changes nothing."""
        new = [one for one in results if one.name in self.ledger.in_flight]
        if not new:
            return
        self._ended.update(self.ledger.in_flight[one.name][0] for one in new)
        self._finish(new)
        self._note("finish", new)
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
        """Wait until every training game has ended; outside lockstep that never is, and nobody waits."""
        await self._until(lambda: not self._in_lockstep() or not self.ledger.accounts.in_flight, wait)
        return not self._in_lockstep() or not self.ledger.accounts.in_flight

    def _rate_held_games(self) -> None:
        """In lockstep games are rated when all of an update have ended, in the order of their numbers.

        So who is drawn and how they are rated does not depend on which game ended first.
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
        """Nothing is played any more."""
        if not self.stopped:
            self.stopped = True
            self._note("stop")
        self._wake()

    def resume(self) -> None:
        """Play again after a :meth:`stop`."""
        if self.stopped:
            self.stopped = False
            self._note("resume")

    def accounts(self) -> dict[str, int]:
        """What became of every game.

        ``replayed`` games were begun anew because their collector was lost; ``consumed`` ones are learned or
        were too old to be.
        """
        ledger, accounts = self.ledger, self.ledger.accounts
        more = {"in_flight": accounts.in_flight, "replayed": ledger.replayed, "consumed": ledger.consumed}
        return accounts.to_dict() | more

    def state_for_people(self) -> dict[str, Any]:
        """The pool and the accounts, JSON-able, as a checkpoint of a run in one process has them."""
        return {"pool": self.pool.state_dict(), "accounts": self.accounts()}

    def state_dict(self) -> dict[str, Any]:
        """Everything, as the journal keeps it."""
        return {
            "pool": self.pool.state_dict(),
            "ledger": self.ledger,
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
                adapters[uid if path else UNTRAINED] = AdapterRef(uid, version, path)
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

    def _note(self, method: str, *args: Any, **kwargs: Any) -> None:
        if self._journal is not None and not self._replaying:
            self._journal.append([method, args, kwargs])

    def _snapshot_if_long(self) -> None:
        if self._journal is not None and not self._replaying and self._journal.length >= SNAPSHOT_EVERY:
            self._journal.snapshot(self.state_dict())

    def _restore(self, state: dict[str, Any] | None, entries: list[Any]) -> None:
        self._replaying = True
        if state is not None:
            self.pool.load_state_dict(state["pool"])
            if state["settings"] is not None:
                self._register("", msgspec.convert(state["settings"], PlaySettings))
                assert self.scheduler is not None
                self.scheduler.load_state_dict(state["scheduler"])
            self.ledger = msgspec.convert(state["ledger"], GameLedger)
            self.policy = AdapterRef(**state["policy"])
            self._last_answer = msgspec.convert(state["last_answer"], dict[str, tuple[int, Jobs]])
            self.stopped = state["stopped"]
        for method, args, kwargs in entries:
            self._repeat(method, args, kwargs)
        self._replaying = False

    def _repeat(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        if method == "register":
            self._register(args[0], msgspec.convert(args[1], PlaySettings))
        elif method == "next_jobs":
            self._next_jobs(*args)
        elif method == "finish":
            self._finish(msgspec.convert(args[0], list[GameResult]))
        elif method in ("add_checkpoint", "publish", "push_match"):
            getattr(self, f"_{method}")(*args)
        else:
            getattr(self, method)(*args, **kwargs)
