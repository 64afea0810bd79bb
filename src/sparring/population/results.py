"""RecentResults: the results of the policies in training against every member, in which old games fade."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar


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


DECAY = 0.99
"""What is left of earlier games after each further game of a pair, as in AlphaStar's pseudocode.

A policy changes while it learns, so a win rate counts about its last 1 / (1 - 0.99) = 100 games."""


@dataclass
class FadingRecord:
    """One policy's games against another member.

    They ``met`` in so many games; in the other counts a game counts ``DECAY`` to the number of later ones.
    """

    met: int = 0
    games: float = 0.0
    wins: float = 0.0
    draws: float = 0.0

    def add(self, won: bool, drawn: bool) -> None:
        """Count a game."""
        self.met += 1
        self.games = DECAY * self.games + 1
        self.wins = DECAY * self.wins + won
        self.draws = DECAY * self.draws + drawn

    @property
    def effective_games(self) -> float:
        """The number of games of equal weight that say as much: (sum of weights)^2 / sum of their squares.

        Source: Kish, "Survey Sampling", 1965. It is at most (1 + DECAY) / (1 - DECAY) = 199.
        """
        squares = (1 - DECAY ** (2 * self.met)) / (1 - DECAY**2)
        return self.games**2 / squares if self.met else 0.0


Record = TypeVar("Record", MatchRecord, FadingRecord)


class _Records(Generic[Record]):
    """Records of members against others, by uid and other uid. ``kind`` makes an empty record."""

    def __init__(self, kind: type[Record]) -> None:
        self._kind: type[Record] = kind
        self._records: dict[str, dict[str, Record]] = {}

    def record(self, uid: str, other: str) -> Record:
        """Return ``uid``'s record against ``other``; it is empty if they never met."""
        return self._records.get(uid, {}).get(other, self._kind())

    def forget(self, uids: Collection[str]) -> None:
        """Delete the records of these members, from both sides."""
        self._records = {
            uid: {other: record for other, record in records.items() if other not in uids}
            for uid, records in self._records.items()
            if uid not in uids
        }

    def state_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the records by uid and other uid."""
        return {
            uid: {other: asdict(record) for other, record in records.items()}
            for uid, records in self._records.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self._records = {
            uid: {other: self._kind(**record) for other, record in records.items()}
            for uid, records in state.items()
        }

    def _entry(self, uid: str, other: str) -> Record:
        return self._records.setdefault(uid, {}).setdefault(other, self._kind())


class MatchTable(_Records[MatchRecord]):
    """Records of every model against every other one, from both sides, and against itself."""

    def __init__(self) -> None:
        super().__init__(MatchRecord)

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

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of games by pair; each pair occurs once, with its uids in alphabetical order."""
        return {
            (uid, other): record.games
            for uid, records in self._records.items()
            for other, record in records.items()
            if uid <= other
        }


RATED_AFTER = 10
"""The number of games after which a member is rated."""


class RecentResults(_Records[FadingRecord]):
    """A :class:`FadingRecord` of every policy against every member that it met."""

    def __init__(self) -> None:
        super().__init__(FadingRecord)

    def add_game(self, policy: str, scores: dict[str, float]) -> None:
        """Count a game of a policy for each other member in it; the higher score wins."""
        mine = scores[policy]
        for uid, score in scores.items():
            if uid != policy:
                self._entry(policy, uid).add(mine > score, mine == score)

    def win_rate(self, policies: Sequence[str], uid: str) -> float | None:
        """Return the win rate of these policies together against a member; ``None`` if it is not rated.

        It is smoothed, (wins + draws / 2 + 1) / (games + 2), and so above 0 and below 1.
        """
        records = [self.record(policy, uid) for policy in policies]
        if sum(one.met for one in records) < RATED_AFTER:
            return None
        points = sum(one.wins + one.draws / 2 for one in records)
        return (points + 1) / (sum(one.games for one in records) + 2)

    def met(self, policy: str, uid: str) -> int:
        """Return the number of games in which a policy met a member."""
        return self.record(policy, uid).met
