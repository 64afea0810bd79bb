"""Accounts: what became of every game and every step. They must add up."""

from dataclasses import asdict, dataclass


@dataclass
class Accounts:
    """Counts since the run began.

    Games: every started training game ends as finished, failed, or is still in flight; ``filtered`` finished
    games were left out of training on purpose. ``retried`` counts further attempts, not games.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    filtered: int = 0
    retried: int = 0
    eval_started: int = 0
    eval_finished: int = 0
    eval_failed: int = 0

    @property
    def in_flight(self) -> int:
        """Training games that have neither finished nor failed."""
        return self.started - self.finished - self.failed

    def to_dict(self) -> dict[str, int]:
        """As plain numbers."""
        return asdict(self)
