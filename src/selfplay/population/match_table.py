"""MatchTable: how often each model met each other, and how it went."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class MatchRecord:
    """One model's games against another; its losses are the rest."""

    games: int = 0
    wins: int = 0
    draws: int = 0


class MatchTable:
    """Records of every model against every other, from both sides, and of its games against itself."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, MatchRecord]] = {}

    def add_game(self, scores: dict[str, float]) -> None:
        """Count a game of two or more models, pair by pair; the higher score wins."""
        for uid, score in scores.items():
            for other, other_score in scores.items():
                if other != uid:
                    record = self._entry(uid, other)
                    record.games += 1
                    record.wins += score > other_score
                    record.draws += score == other_score

    def add_self_game(self, uid: str) -> None:
        """Count a game of a model against itself, which nobody wins."""
        self._entry(uid, uid).games += 1

    def record(self, uid: str, other: str) -> MatchRecord:
        """Return ``uid``'s record against ``other``; an empty one if they never met."""
        return self._records.get(uid, {}).get(other, MatchRecord())

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the games of each pair, each pair once, its uids in order of the alphabet."""
        return {
            (uid, other): record.games
            for uid, records in self._records.items()
            for other, record in records.items()
            if uid <= other
        }

    def state_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the records by uid and other uid."""
        return {
            uid: {other: asdict(record) for other, record in records.items()}
            for uid, records in self._records.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that ``state_dict`` returned, in place of what is there."""
        self._records = {
            uid: {other: MatchRecord(**record) for other, record in records.items()}
            for uid, records in state.items()
        }

    def _entry(self, uid: str, other: str) -> MatchRecord:
        return self._records.setdefault(uid, {}).setdefault(other, MatchRecord())
