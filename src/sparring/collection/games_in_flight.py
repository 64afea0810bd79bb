"""The games of a run in flight, and what became of all, in counts that add up."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sparring.collection.results import EnvSpec, GameJob, GameResult
from sparring.core import CallSettings
from sparring.core.types import UNSET

COUNTS = (
    *("started", "finished", "failed", "filtered", "retried"),
    *(f"{kind}_{what}" for kind in ("eval", "payoff") for what in ("started", "finished", "failed")),
)


@dataclass(frozen=True)
class PlaySettings:
    """The games that the collectors of a run play.

    Attributes:
        environments: environments of training games, drawn by ``weights``.
        evaluation: pairs of environment and opponent uid, taken in turn.
        temperature: the sampling temperature of trained seats.
        opponents: how members of the pool draw that are not in training, where they differ.
        games_per_step: training games of an update; ``None`` for no limit on started games.
        max_staleness: how many updates' games may be started beyond the update that is being learned.
        eval_games_per_step: evaluation games of an update; ``None`` for no such limit.
        max_eval_games_per_ckpt: maximum evaluation games of a checkpoint in each entry of ``evaluation``.
        curriculum: whether ``weights`` follow the results, as in
            :class:`~sparring.population.curriculum.Curriculum`.
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
    opponents: CallSettings = UNSET
    curriculum: bool = False

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

    ``accounts`` are counts since the run began. Started training games are finished, failed, or going on;
    ``filtered`` ones finished and were left out of training; ``retried`` counts further attempts. ``failed
    TYPE`` and ``raised TYPE`` count failed games, and those that ended by a move on which the game raised.
    ``consumed`` training games were learned or too old. ``evaluated`` counts evaluation games by checkpoint.
    ``unrated`` games wait for the others of their update. ``matches``: (update, games of a match) of the
    evaluations that are rated.
    """

    accounts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    replayed: int = 0
    consumed: int = 0
    in_flight: dict[str, tuple[str, GameJob]] = field(default_factory=dict)
    again: list[GameJob] = field(default_factory=list)
    evaluated: dict[str, int] = field(default_factory=dict)
    unrated: list[tuple[GameJob, GameResult]] = field(default_factory=list)
    matches: set[tuple[int, int]] = field(default_factory=set)

    def hand_out(self, collector: str, job: GameJob) -> None:
        """Record that a new game goes to a collector."""
        self._count(job, "started")
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
        self.accounts["payoff_started"] -= len(given_up) + len(self.again) - len(again)
        self.in_flight = {name: one for name, one in self.in_flight.items() if name not in given_up}
        self.again = again

    def end(self, result: GameResult) -> GameJob | None:
        """Record the end of a game; return the game, or ``None`` if its end was already known."""
        _, job = self.in_flight.pop(result.name, (None, None))
        if job is not None:
            self._count(job, "failed" if result.status == "failed" else "finished")
            self.accounts["filtered"] += result.status == "filtered"
            self.accounts["retried"] += result.retried
            for what, error in (("failed", result.failure), ("raised", result.raised)):
                if error is not None:
                    self.accounts[f"{what} {error}"] = self.accounts.get(f"{what} {error}", 0) + 1
        return job

    def uids(self) -> set[str]:
        """Return the uids of all players in games that are in flight or to be played again."""
        jobs = [*(job for _, job in self.in_flight.values()), *self.again]
        return {uid for job in jobs for uid in job.uids}

    def going_on(self, prefix: str = "") -> int:
        """Return how many training games, or ``payoff_`` games, have neither finished nor failed."""
        counts = self.accounts
        return counts[f"{prefix}started"] - counts[f"{prefix}finished"] - counts[f"{prefix}failed"]

    def _count(self, job: GameJob, what: str) -> None:
        self.accounts[("" if job.is_training else f"{job.meta.type}_") + what] += 1
