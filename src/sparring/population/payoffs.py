"""PayoffTable: what members of a population earn against each other, by who sits where."""

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparring.core.confidence_intervals import NORMAL_95, Interval, normal_interval
from sparring.population.payoff import Payoff, RewardRange, Rounds, Seating

_ROUNDING = 1e-9


@dataclass(frozen=True)
class PayoffMatrix:
    """What each member (row) earns against each other one (column) in a game for two.

    Attributes:
        members: the uids of rows and columns (M of them).
        mean_MM: the row's mean reward, the average over both seats; NaN for pairs that did not meet.
        error_MM: its standard error, see :meth:`Payoff.error`; infinite for pairs that did not meet.
        games_MM: the number of games, in both seats together.
    """

    members: tuple[str, ...]
    mean_MM: NDArray[np.float64]
    error_MM: NDArray[np.float64]
    games_MM: NDArray[np.int64]

    @property
    def is_zero_sum(self) -> bool:
        """Whether what one earns the other loses, in every pair that met, but for rounding."""
        sums_MM = np.nan_to_num(self.mean_MM + self.mean_MM.T)
        return bool(np.abs(sums_MM).max() <= _ROUNDING * max(1.0, float(np.nanmax(np.abs(self.mean_MM)))))

    @property
    def known_MM(self) -> NDArray[np.bool_]:
        """Which means are known: of pairs that met, and in a zero-sum game of members against themselves."""
        known_MM = self.games_MM > 0
        if self.is_zero_sum:
            np.fill_diagonal(known_MM, True)
        return known_MM

    @property
    def advantage_MM(self) -> NDArray[np.float64]:
        """Half of what the row earns more than the column: antisymmetric; ``mean_MM`` if sums are zero."""
        advantage_MM: NDArray[np.float64] = (self.mean_MM - self.mean_MM.T) / 2
        return advantage_MM

    @property
    def advantage_error_MM(self) -> NDArray[np.float64]:
        """The standard error of :attr:`advantage_MM`, or an upper bound of it in a game that is not zero-sum.

        The rewards of the two are of the same games: they vary most if one's gain is the other's loss.
        """
        error_MM: NDArray[np.float64] = (self.error_MM + self.error_MM.T) / 2
        return error_MM


class PayoffTable:
    """Payoffs by seating. A game never counts twice: each has a number of its own in the table.

    Where nearly all games of a group are rounds, all orders of seats of one deal, a mean reward has the error
    of the rounds' means; see :class:`Rounds`.
    """

    def __init__(self) -> None:
        self._payoffs: dict[Seating, Payoff] = {}
        self._rounds = Rounds()
        self._numbers = NumberRanges()
        self._range: RewardRange | None = None
        self._totals: RewardRange | None = None

    @property
    def reward_range(self) -> RewardRange:
        """The lowest and the highest reward of any seat in any game; (0, 0) without games."""
        return self._range or (0.0, 0.0)

    @property
    def totals(self) -> RewardRange:
        """The lowest and the highest sum of all seats' rewards in any game; (0, 0) without games."""
        return self._totals or (0.0, 0.0)

    def add(
        self,
        number: int,
        seating: Sequence[str],
        rewards: Sequence[float],
        invalid_seat: int | None = None,
        deal: int | None = None,
    ) -> bool:
        """Count a finished game, unless the table has it; return whether it was new.

        Args:
            number: the game's number, unique in this table, whoever plays; neighbouring numbers take no
                memory.
            seating: the member in each seat.
            rewards: the final reward of each seat.
            invalid_seat: the seat whose invalid move ended the game.
            deal: numbers the deals of this group of members, if each is played in all orders of seats.

        Raises:
            ValueError: the numbers of seats and rewards differ, or a reward is not finite.
        """
        if len(seating) != len(rewards) or not all(map(math.isfinite, rewards)):
            raise ValueError(f"rewards {list(rewards)} of the seating {list(seating)}")
        if new := self._numbers.add(number):
            self._entry(seating).add(rewards, invalid_seat)
            if deal is not None:
                self._rounds.add(tuple(seating), rewards, deal)
            seen = (*(self._range or ()), *rewards)
            self._range = min(seen), max(seen)
            sums = (*(self._totals or ()), math.fsum(rewards))
            self._totals = min(sums), max(sums)
        return new

    def add_failure(self, number: int, seating: Sequence[str]) -> bool:
        """Count a game that could not be finished, unless the table has it; return whether it was new."""
        if new := self._numbers.add(number):
            self._entry(seating).failed += 1
        return new

    def append(
        self, seating: Sequence[str], rewards: Sequence[float], invalid_seat: int | None = None
    ) -> None:
        """Count a finished game that is known to be new, under the next number.

        A table whose games have numbers of their own has no use for it.
        """
        self.add(len(self._numbers), seating, rewards, invalid_seat)

    def append_failure(self, seating: Sequence[str]) -> None:
        """Count a game that could not be finished and is known to be new, as :meth:`append` does."""
        self.add_failure(len(self._numbers), seating)

    def __contains__(self, number: object) -> bool:
        """Whether the table has the game of this number."""
        return number in self._numbers

    def payoff(self, *seating: str) -> Payoff:
        """Return the payoff of a seating; an empty one if it was not played."""
        return self._payoffs.get(seating) or Payoff.empty(len(seating))

    def mean(self, seating: Sequence[str], seat: int) -> float:
        """Return the mean reward of a seat; NaN without games."""
        return self._exact(self.payoff(*seating).mean(seat))

    def items(self) -> Iterator[tuple[Seating, Payoff]]:
        """Return every seating with its payoff, in alphabetical order."""
        yield from sorted(self._payoffs.items())

    def members(self) -> list[str]:
        """Return every member that has a game, in alphabetical order."""
        return sorted({uid for seating in self._payoffs for uid in seating})

    def matrix(self, members: Sequence[str]) -> PayoffMatrix:
        """Return the payoffs of a game for two between these members.

        Both seats weigh the same, however many games each has; if a pair played in one order only, that
        order counts alone. A member against itself earns the mean of both seats, which is 0 in a zero-sum
        game, and 0 without games. Its error is 0 there; in another game it is an upper bound, because the
        rewards of its two seats come from the same games, and how they vary together is not kept.
        """
        size = len(members)
        mean_MM, error_MM = np.zeros((size, size)), np.zeros((size, size))
        games_MM = np.zeros((size, size), dtype=np.int64)
        for row, uid in enumerate(members):
            for column, other in enumerate(members):
                sides = [((uid, other), 0), ((other, uid), 1)]
                played = [(seating, seat) for seating, seat in sides if self.payoff(*seating).games]
                if not played and row == column:
                    continue
                mean_MM[row, column], error_MM[row, column] = self._mean_of_seats(played)
                games = sum(self.payoff(*seating).games for seating, _ in played)
                games_MM[row, column] = games // 2 if row == column else games
        matrix = PayoffMatrix(tuple(members), mean_MM, error_MM, games_MM)
        if matrix.is_zero_sum:
            np.fill_diagonal(error_MM, 0.0)
        return matrix

    @property
    def seats(self) -> int:
        """The number of seats of the largest game; 2 without games."""
        return max((len(seating) for seating in self._payoffs), default=2)

    def score(self, uid: str, members: Collection[str]) -> Interval | None:
        """Return a member's mean reward with its 95% interval; ``None`` if it met nobody.

        Every seat that it has beside others, all of them among ``members``, has the same weight, however many
        games it has.
        """
        played = self._met(uid, members)
        if not played:
            return None
        return normal_interval(*self._mean_of_seats(played))

    def score_in(self, seat: int, uid: str, members: Collection[str]) -> Interval | None:
        """Return a member's mean reward in one seat, as :meth:`score`.

        Games of one group may share deals, so an upper bound of their error is taken: the mean of the errors.
        """
        played = [seating for seating, place in self._met(uid, members) if place == seat]
        if not played:
            return None
        errors: dict[Seating, float] = {}
        for seating in played:
            group = tuple(sorted(seating))
            errors[group] = errors.get(group, 0.0) + self.payoff(*seating).error(seat, self.reward_range)
        mean = sum(self.payoff(*seating).mean(seat) for seating in played) / len(played)
        spread = NORMAL_95 * math.hypot(*errors.values()) / len(played)
        return Interval(mean - spread, mean, mean + spread)

    def beside(self, uid: str, others: Sequence[str]) -> tuple[float, float, int]:
        """Return what a member earns where these have the other seats, its standard error, and the games.

        Every order of seats that was played has the same weight. Without games, the mean is NaN and the error
        infinite.
        """
        seatings = [one for one in {*permutations((uid, *others))} if self.payoff(*one).games]
        played = [(one, seat) for one in sorted(seatings) for seat in range(len(one)) if one[seat] == uid]
        return *self._mean_of_seats(played), sum(self.payoff(*one).games for one in seatings)

    def forget(self, uids: Collection[str]) -> None:
        """Delete every seating with one of these members. The numbers of their games stay known."""
        self._payoffs = {
            seating: payoff for seating, payoff in self._payoffs.items() if not {*uids} & {*seating}
        }
        self._rounds.forget(uids)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each seating and seat, with means, 95% intervals and counts.

        The variance is that of the rewards; the interval takes two more into account (:meth:`Payoff.error`).
        Unknown is ``None``.
        """
        return [
            self._row(seat, uid, seating, payoff)
            for seating, payoff in self.items()
            for seat, uid in enumerate(seating)
        ]

    def _row(self, seat: int, uid: str, seating: Seating, payoff: Payoff) -> dict[str, Any]:
        mean, spread = payoff.mean(seat), NORMAL_95 * payoff.error(seat, self.reward_range)
        return {
            "seat": seat,
            "member": uid,
            "seating": list(seating),
            "games": payoff.games,
            "mean": _known(mean),
            "variance": _known(payoff.variance(seat)),
            "low": _known(mean - spread),
            "high": _known(mean + spread),
            "wins": payoff.wins[seat],
            "draws": payoff.draws,
            "invalid": payoff.invalid[seat],
            "failed": payoff.failed,
        }

    def to_csv(self) -> str:
        """Return :meth:`rows` as comma-separated values, the seating in ``player_0``, ``player_1``, ..."""
        players = [f"player_{seat}" for seat in range(self.seats)]
        text = io.StringIO()
        writer = csv.DictWriter(text, ["seat", "member", *players, *_FIGURES], lineterminator="\n")
        writer.writeheader()
        for row in self.rows():
            seating = dict(zip(players, row.pop("seating"), strict=False))
            writer.writerow(row | seating)
        return text.getvalue()

    def state_dict(self) -> dict[str, Any]:
        """Return the table as JSON-able values, without rounds: who has deals can count them again."""
        return {
            "numbers": self._numbers.state(),
            "range": None if self._range is None else list(self._range),
            "totals": None if self._totals is None else list(self._totals),
            "payoffs": [{"seating": list(seating), **asdict(payoff)} for seating, payoff in self.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self._numbers = NumberRanges.from_state(state["numbers"])
        known = state["range"]
        self._range = None if known is None else (known[0], known[1])
        self._payoffs = {
            tuple(entry["seating"]): msgspec.convert(entry, Payoff) for entry in state["payoffs"]
        }
        played = [(who, one) for who, one in self.items() if one.games]
        # An older version did not keep the totals; of its games, the mean of a seating is known.
        totals = state.get("totals") or [sum(map(one.mean, range(len(who)))) for who, one in played]
        self._totals = (min(totals), max(totals)) if totals else None

    def _met(self, uid: str, members: Collection[str]) -> list[tuple[Seating, int]]:
        """Return the seatings and seats in which a member met others, all of them among ``members``."""
        return [
            (seating, seat)
            for seating, payoff in self.items()
            if len({*seating}) > 1 and {*seating} <= {*members} and payoff.games
            for seat, one in enumerate(seating)
            if one == uid
        ]

    def _entry(self, seating: Sequence[str]) -> Payoff:
        return self._payoffs.setdefault(tuple(seating), Payoff.empty(len(seating)))

    def _mean_of_seats(self, played: Sequence[tuple[Seating, int]]) -> tuple[float, float]:
        if not played:
            return math.nan, math.inf
        mean = sum(self.mean(seating, seat) for seating, seat in played) / len(played)
        groups: dict[Seating, list[tuple[Seating, int]]] = {}
        for seating, seat in played:
            groups.setdefault(tuple(sorted(seating)), []).append((seating, seat))
        errors = [self._error_of_sum(group, one) for group, one in groups.items()]
        return self._exact(mean), math.hypot(*errors) / len(played)

    def _exact(self, mean: float) -> float:
        """Return a mean without the rounding of its sum: who earned the same has the same mean.

        Only 12 decimals of the range of rewards are kept, or 15 of the largest. Else a difference of 1e-17
        decides a meta-strategy, which is the same in every unit.
        """
        low, high = self.reward_range
        unit = max(high - low, max(abs(low), abs(high)) / 1000) or 1.0
        return round(mean, 12 - math.ceil(math.log10(unit)))

    def _error_of_sum(self, group: Seating, played: Sequence[tuple[Seating, int]]) -> float:
        games = sum(self.payoff(*seating).games for seating, _ in played)
        seating, seat = played[0]
        error = self._rounds.error(group, seating[seat], games / len(played))
        if error is not None:
            return len(played) * error
        by_seating: dict[Seating, float] = {}  # the seats of one game vary together
        for one, seat in played:
            by_seating[one] = by_seating.get(one, 0.0) + self.payoff(*one).error(seat, self.reward_range)
        shared = self._rounds.are_few(group)  # games that share a deal vary together: at most by the sum
        return sum(by_seating.values()) if shared else math.hypot(*by_seating.values())


_FIGURES = ["games", "mean", "variance", "low", "high", "wins", "draws", "invalid", "failed"]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class NumberRanges:
    """A set of whole numbers that takes memory for each gap instead of each number."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, number: int) -> bool:
        """Add a number; return whether it was missing."""
        if number in self:
            return False
        after = bisect_right(self._starts, number)
        joins_left = after > 0 and self._ends[after - 1] == number
        joins_right = after < len(self._starts) and self._starts[after] == number + 1
        if joins_left and joins_right:
            self._ends[after - 1] = self._ends.pop(after)
            self._starts.pop(after)
        elif joins_left:
            self._ends[after - 1] = number + 1
        elif joins_right:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._ends.insert(after, number + 1)
        return True

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def state(self) -> list[list[int]]:
        """Return the ranges in order, each as its first number and the one after its last."""
        return [[start, end] for start, end in zip(self._starts, self._ends, strict=True)]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[int]]) -> "NumberRanges":
        """Return the set of these ranges, which :meth:`state` returned."""
        ranges = cls()
        ranges._starts = [int(start) for start, _ in state]
        ranges._ends = [int(end) for _, end in state]
        return ranges
