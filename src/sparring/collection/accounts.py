"""Accounts: counts of the outcome of every game, which must add up."""

from dataclasses import asdict, dataclass, field
from typing import Any

from sparring.collection.results import GameResult
from sparring.collection.scheduler import GameJob


@dataclass
class Accounts:
    """Counts since the run began.

    Every started training game is finished, failed, or still in flight; ``filtered`` finished games were left
    out of training on purpose. ``retried`` counts further attempts, not games. Games for payoffs of the pool
    have counts of their own, as those of evaluations. ``failures`` counts the failed games of all types, and
    ``raised`` the finished ones that ended by a move on which the game raised, both by type of error.
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
