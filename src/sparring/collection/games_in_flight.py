"""The games of a run: which are next, which are in flight, and what became of all, in counts that add up."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring.collection.results import GameResult
from sparring.collection.scheduler import EnvSpec, GameJob, GameScheduler
from sparring.population.environment_samplers import WeightedEnvSampler
from sparring.population.league import League
from sparring.population.model_pool import ModelPool


@dataclass
class Accounts:
    """Counts since the run began: started training games are finished, failed, or still in flight.

    ``filtered`` games finished and were left out of training; ``retried`` counts further attempts. Games of
    evaluations and those for payoffs have counts of their own. ``failures`` and ``raised`` are by type of
    error: of failed games, and of finished ones that ended by a move on which the game raised.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    filtered: int = 0
    retried: int = 0
    eval_started: int = 0
    eval_finished: int = 0
    eval_failed: int = 0
    payoff_started: int = 0
    payoff_finished: int = 0
    payoff_failed: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Training games that have neither finished nor failed."""
        return self.started - self.finished - self.failed

    @property
    def payoffs_in_flight(self) -> int:
        """Games for payoffs that have neither finished nor failed."""
        return self.payoff_started - self.payoff_finished - self.payoff_failed

    def begin(self, job: GameJob) -> None:
        """Count a game that starts."""
        if job.is_training:
            self.started += 1
        elif job.is_payoff:
            self.payoff_started += 1
        else:
            self.eval_started += 1

    def end(self, job: GameJob, result: GameResult) -> None:
        """Count a game that has ended."""
        failed = result.status == "failed"
        self.retried += result.retried
        _count(self.failures, result.failure)
        _count(self.raised, result.raised)
        if job.is_training:
            self.failed += failed
            self.finished += not failed
            self.filtered += result.status == "filtered"
        elif job.is_payoff:
            self.payoff_failed += failed
            self.payoff_finished += not failed
        else:
            self.eval_failed += failed
            self.eval_finished += not failed

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-able arguments of the constructor."""
        return asdict(self)

    def figures(self) -> dict[str, int]:
        """Return the counts as plain numbers by name, for metrics."""
        counts = self.to_dict()
        failures, raised = counts.pop("failures"), counts.pop("raised")
        counts |= {f"failed {kind}": count for kind, count in failures.items()}
        return counts | {f"raised {kind}": count for kind, count in raised.items()}


def _count(kinds: dict[str, int], kind: str | None) -> None:
    if kind is not None:
        kinds[kind] = kinds.get(kind, 0) + 1


@dataclass(frozen=True)
class PlaySettings:
    """The games that the collectors of a run play.

    Attributes:
        environments: environments of training games, drawn by ``weights``.
        evaluation: pairs of environment and opponent uid, taken in turn.
        temperature: the sampling temperature of trained seats.
        games_per_step: training games of an update; ``None`` for no limit on started games.
        max_staleness: how many updates' games may be started beyond the update that is being learned.
        eval_games_per_step: evaluation games of an update; ``None`` for no such limit.
        max_eval_games_per_ckpt: maximum evaluation games of a checkpoint in each entry of ``evaluation``.
    """

    environments: tuple[EnvSpec, ...]
    weights: tuple[float, ...]
    evaluation: tuple[tuple[EnvSpec, str], ...]
    seed: int
    temperature: float
    max_tokens: int
    games_per_step: int | None = None
    max_staleness: int = 0
    eval_games_per_step: int | None = None
    max_eval_games_per_ckpt: int | None = None

    def training_allowed(self, consumed: int) -> int | None:
        """Return how many training games may have started once ``consumed`` of them are learned or dropped.

        An update takes ``games_per_step`` of them or more, so a game that starts now is learned within
        ``max_staleness`` further updates, as in AReaL.
        """
        if self.games_per_step is None:
            return None
        return consumed + self.games_per_step * (1 + self.max_staleness)

    @property
    def in_lockstep(self) -> bool:
        """Whether all games of an update end before its successor's begin."""
        return self.games_per_step is not None and self.max_staleness == 0


@dataclass
class GamesInFlight:
    """Games in flight by name with the collector that plays them, games to replay, and accounts.

    ``consumed`` training games were learned or too old. ``evaluated`` counts evaluation games by checkpoint.
    ``unrated`` games wait for the others of their update. ``matches``: (update, games of a match) of the
    evaluations that are rated.
    """

    accounts: Accounts = field(default_factory=Accounts)
    replayed: int = 0
    consumed: int = 0
    in_flight: dict[str, tuple[str, GameJob]] = field(default_factory=dict)
    again: list[GameJob] = field(default_factory=list)
    evaluated: dict[str, int] = field(default_factory=dict)
    unrated: list[tuple[GameJob, GameResult]] = field(default_factory=list)
    matches: set[tuple[int, int]] = field(default_factory=set)

    def hand_out(self, collector: str, job: GameJob) -> None:
        """Record that a new game goes to a collector."""
        self.accounts.begin(job)
        self.in_flight[job.name] = (collector, job)

    def hand_out_again(self, collector: str, kind: str, count: int) -> list[GameJob]:
        """Give up to ``count`` games of a lost collector to this one."""
        jobs = [job for job in self.again if job.meta.type == kind][:count]
        for job in jobs:
            self.again.remove(job)
            self.in_flight[job.name] = (collector, job)
        self.replayed += len(jobs)
        return jobs

    def take_back(self, collector: str) -> int:
        """Mark the games of a restarted collector to be played again; return their number."""
        lost = [name for name, (owner, _) in self.in_flight.items() if owner == collector]
        self.again += [self.in_flight.pop(name)[1] for name in lost]
        return len(lost)

    def replace(self, replacement: Callable[[GameJob], GameJob]) -> None:
        """Replace every game that has not ended; a replacement has the name of its game."""
        self.in_flight = {name: (owner, replacement(job)) for name, (owner, job) in self.in_flight.items()}
        self.again = [replacement(job) for job in self.again]

    def give_up(self, is_given_up: Callable[[GameJob], bool]) -> None:
        """Forget payoff games that have not ended, as if they had never started."""
        given_up = {name for name, (_, job) in self.in_flight.items() if is_given_up(job)}
        again = [job for job in self.again if not is_given_up(job)]
        self.accounts.payoff_started -= len(given_up) + len(self.again) - len(again)
        self.in_flight = {name: one for name, one in self.in_flight.items() if name not in given_up}
        self.again = again

    def end(self, result: GameResult) -> GameJob | None:
        """Record the end of a game; return the game, or ``None`` if its end was already known."""
        _, job = self.in_flight.pop(result.name, (None, None))
        if job is not None:
            self.accounts.end(job, result)
        return job

    def uids(self) -> set[str]:
        """Return the uids of all players in games that are in flight or to be played again."""
        jobs = [*(job for _, job in self.in_flight.values()), *self.again]
        return {uid for job in jobs for uid in job.uids}


NO_LIMIT = 1 << 30


class GameQueue:
    """Games that a lost collector had come first, then new ones; a league or the pool chooses the players."""

    def __init__(
        self, pool: ModelPool, settings: PlaySettings, ledger: GamesInFlight, league: League | None = None
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.ledger = ledger
        self.scheduler = GameScheduler(
            pool,
            WeightedEnvSampler(list(settings.environments), list(settings.weights)),
            evaluation=settings.evaluation,
            seed=settings.seed,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            league=league,
            pin_evaluation=settings.max_eval_games_per_ckpt is not None,
        )

    def next_jobs(self, collector: str, training: int, evaluation: int, step: int) -> list[GameJob]:
        """Hand out at most this many games of each kind; ``step`` counts the run's updates.

        Payoff games take the places of training games, and no training game starts before they have ended.
        """
        jobs = self.ledger.hand_out_again(collector, "train", training)
        jobs += self.ledger.hand_out_again(collector, "payoff", training - len(jobs))
        for payoff_job in self.scheduler.next_payoff_jobs(training - len(jobs)):
            jobs.append(self._handed_out(collector, payoff_job))
        for _ in range(min(training - len(jobs), self._training_left())):
            jobs.append(self._handed_out(collector, self.scheduler.next_train_job()))
        evaluations = self.ledger.hand_out_again(collector, "eval", evaluation)
        for _ in range(min(evaluation - len(evaluations), self._evaluation_left(step))):
            evaluations.append(self._handed_out(collector, self._next_eval_job()))
        return jobs + evaluations

    def has_any(self, training: int, evaluation: int, step: int) -> bool:
        """Return whether :meth:`next_jobs` would hand out a game."""
        kinds = {job.meta.type for job in self.ledger.again}
        waiting = {"train", "payoff"} & kinds or self.pool.payoffs.waiting
        train = training > 0 and bool(waiting or self._training_left() > 0)
        return train or (evaluation > 0 and ("eval" in kinds or self._evaluation_left(step) > 0))

    def replace_opponents(self, removed: set[str]) -> None:
        """Give games against removed members another opponent, and give up their payoff games."""
        train_job = self.scheduler.train_job
        self.ledger.give_up(lambda job: job.is_payoff and bool(removed & {*job.uids}))
        self.ledger.replace(lambda job: train_job(job.meta.index) if removed & {*job.uids} else job)

    def _handed_out(self, collector: str, job: GameJob) -> GameJob:
        self.ledger.hand_out(collector, job)
        return job

    def _next_eval_job(self) -> GameJob:
        current = self.pool.current_uid() or ""
        place = self.ledger.evaluated.get(current, 0)
        self.ledger.evaluated[current] = place + 1
        return self.scheduler.next_eval_job(place if self.scheduler.pin_evaluation else None)

    def _training_left(self) -> int:
        if self.pool.payoffs.waiting or self.ledger.accounts.payoffs_in_flight:
            return 0
        allowed = self.settings.training_allowed(self.ledger.consumed)
        return NO_LIMIT if allowed is None else max(0, allowed - self.ledger.accounts.started)

    def _evaluation_left(self, step: int) -> int:
        settings, ledger = self.settings, self.ledger
        if not settings.evaluation:
            return 0
        left = NO_LIMIT
        if settings.eval_games_per_step is not None:
            left = settings.eval_games_per_step * (step + 1) - ledger.accounts.eval_started
        if settings.max_eval_games_per_ckpt is not None:
            most = settings.max_eval_games_per_ckpt * len(settings.evaluation)
            left = min(left, most - ledger.evaluated.get(self.pool.current_uid() or "", 0))
        return max(0, left)
