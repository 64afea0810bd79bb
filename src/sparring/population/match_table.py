"""MatchTable: the numbers of games, wins and draws between every two models."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class MatchRecord:
    """One model's games against another; the remaining games are losses."""

    games: int = 0
    wins: int = 0
    draws: int = 0

    @property
    def points(self) -> float:
        """Wins, and half of the draws."""
        return self.wins + self.draws / 2


class MatchTable:
    """Records of every model against every other one, from both sides, and against itself."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, MatchRecord]] = {}

    def add_game(self, scores: dict[str, float]) -> None:
        """Count a game of two or more models for each pair; the higher score wins."""
        for uid, score in scores.items():
            for other, other_score in scores.items():
                if other != uid:
                    record = self._entry(uid, other)
                    record.games += 1
                    record.wins += score > other_score
                    record.draws += score == other_score

    def add_self_game(self, uid: str) -> None:
        """Count a game of a model against itself, which has no winner."""
        self._entry(uid, uid).games += 1

    def record(self, uid: str, other: str) -> MatchRecord:
        """Return ``uid``'s record against ``other``; it is empty if they never met."""
        return self._records.get(uid, {}).get(other, MatchRecord())

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of games by pair; each pair occurs once, with its uids in alphabetical order."""
        return {
            (uid, other): record.games
            for uid, records in self._records.items()
            for other, record in records.items()
            if uid <= other
        }

    def forget(self, uids: Collection[str]) -> None:
        """Delete the records of these models, from both sides."""
        self._records = {
            uid: {other: record for other, record in records.items() if other not in uids}
            for uid, records in self._records.items()
            if uid not in uids
        }

    def state_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the records by uid and other uid."""
        return {
            uid: {other: asdict(record) for other, record in records.items()}
            for uid, records in self._records.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self._records = {
            uid: {other: MatchRecord(**record) for other, record in records.items()}
            for uid, records in state.items()
        }

    def _entry(self, uid: str, other: str) -> MatchRecord:
        return self._records.setdefault(uid, {}).setdefault(other, MatchRecord())
