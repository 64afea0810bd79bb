"""GameLedger: every game of a run from the moment it is handed out until somebody says how it ended."""

from dataclasses import dataclass, field
from typing import Literal

from selfplay.collection.accounts import Accounts
from selfplay.collection.scheduler import EnvSpec, Job


@dataclass(frozen=True)
class PlaySettings:
    """What the collectors of a run play.

    Attributes:
        environments: drawn by ``weights``.
        evaluation: environment and opponent uid, taken in turn.
        seed: the run's.
        temperature: at which trained seats draw.
        max_tokens: most tokens of an answer.
        games_per_step: training games of an update; ``None`` for no limit on what is started.
        max_staleness: how many updates' games may be started beyond the one that is learned.
        eval_games_per_step: evaluation games of an update; ``None`` for no such limit.
        max_eval_games_per_ckpt: most evaluation games of a checkpoint in each entry of ``evaluation``.
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
        """How many training games may have been started while ``consumed`` of them are learned or dropped.

        An update takes ``games_per_step`` of them or more, so what is started now is learned within
        ``max_staleness`` further updates. (AReaL bounds its rollouts in the same way.)
        """
        if self.games_per_step is None:
            return None
        return consumed + self.games_per_step * (1 + self.max_staleness)


@dataclass(frozen=True)
class GameResult:
    """How a game ended. ``filtered``: it finished and is left out of training and ratings on purpose."""

    name: str
    status: Literal["finished", "failed", "filtered"]
    retried: int = 0
    rewards: list[float] = field(default_factory=list)
    action_seq: list[str] = field(default_factory=list)


@dataclass
class GameLedger:
    """Games in flight by name with the collector that has them, games to be played again, and accounts.

    ``consumed`` training games are learned, or were too old to be. ``evaluated`` counts by checkpoint.
    ``unrated`` games wait for the others of their update. ``matches`` are evaluations that are rated.
    """

    accounts: Accounts = field(default_factory=Accounts)
    replayed: int = 0
    consumed: int = 0
    in_flight: dict[str, tuple[str, Job]] = field(default_factory=dict)
    again: list[Job] = field(default_factory=list)
    evaluated: dict[str, int] = field(default_factory=dict)
    unrated: list[tuple[Job, GameResult]] = field(default_factory=list)
    matches: set[str] = field(default_factory=set)

    def hand_out(self, collector: str, job: Job) -> None:
        """A new game goes to a collector."""
        if job.meta.type == "train":
            self.accounts.started += 1
        else:
            self.accounts.eval_started += 1
        self.in_flight[job.name] = (collector, job)

    def hand_out_again(self, collector: str, kind: str, count: int) -> list[Job]:
        """Up to ``count`` games that a lost collector had go to this one."""
        jobs = [job for job in self.again if job.meta.type == kind][:count]
        for job in jobs:
            self.again.remove(job)
            self.in_flight[job.name] = (collector, job)
        self.replayed += len(jobs)
        return jobs

    def take_back(self, collector: str) -> int:
        """The games of a collector that has begun anew are to be played again; returns how many."""
        lost = [name for name, (owner, _) in self.in_flight.items() if owner == collector]
        self.again += [self.in_flight.pop(name)[1] for name in lost]
        return len(lost)

    def end(self, result: GameResult) -> Job | None:
        """A game has ended; returns it, or ``None`` if that was known."""
        _, job = self.in_flight.pop(result.name, (None, None))
        if job is None:
            return None
        accounts, failed = self.accounts, result.status == "failed"
        accounts.retried += result.retried
        if job.meta.type == "train":
            accounts.failed += failed
            accounts.finished += not failed
            accounts.filtered += result.status == "filtered"
        else:
            accounts.eval_failed += failed
            accounts.eval_finished += not failed
        return job

    def uids(self) -> set[str]:
        """Everybody who sits at a game that is under way or to be played again."""
        jobs = [*(job for _, job in self.in_flight.values()), *self.again]
        return {uid for job in jobs for uid in job.uids}
