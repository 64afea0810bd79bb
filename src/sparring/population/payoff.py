"""Payoff and Rounds: finished games as sums from which means and errors follow.

In a round, members play the same deal in all different orders of seats. Luck with the cards is then nearly
the same for all of them, so the mean of a round varies less than the mean of as many independent games.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

MOST = 0.9
"""Share of a group's games in complete rounds from which on the error is that of rounds; others failed."""
FEWEST = 5
"""Complete rounds of a group from which on they show how much rounds vary."""
Seating = tuple[str, ...]
"""The uid of the member in each seat."""
RewardRange = tuple[float, float]
"""The lowest and the highest reward of any seat."""


@dataclass
class Payoff:
    """The games of one seating. Lists have one value for each seat.

    Attributes:
        games: finished games; failed ones are not among them.
        sums: the sum of what each seat's rewards are above its first one.
        squares: the sum of the squares of that, which do not lose a small spread beside large rewards.
        wins: games in which the seat's reward was greater than every other.
        draws: games in which no seat's reward was greater than every other.
        invalid: games that an invalid move of the seat ended; they also count as any other game.
        failed: games that could not be finished.
        first: each seat's first reward; zeros in what an older version counted, and empty without games.
    """

    games: int
    sums: list[float]
    squares: list[float]
    wins: list[int]
    draws: int
    invalid: list[int]
    failed: int
    first: list[float] = field(default_factory=list)

    @classmethod
    def empty(cls, seats: int) -> "Payoff":
        """Return the payoff of a seating that was not played."""
        return cls(0, [0.0] * seats, [0.0] * seats, [0] * seats, 0, [0] * seats, 0)

    def add(self, rewards: Sequence[float], invalid_seat: int | None) -> None:
        """Count a finished game."""
        if not self.first:
            self.first = [0.0] * len(rewards) if self.games else [*rewards]
        self.games += 1
        best = max(rewards)
        single = sum(reward == best for reward in rewards) == 1
        self.draws += not single
        for seat, reward in enumerate(rewards):
            above = reward - self.first[seat]
            self.sums[seat] += above
            self.squares[seat] += above * above
            self.wins[seat] += single and reward == best
            self.invalid[seat] += seat == invalid_seat

    def mean(self, seat: int) -> float:
        """Return the seat's mean reward; NaN without games."""
        if not self.games:
            return math.nan
        return (self.games * self._first(seat) + self.sums[seat]) / self.games  # exact for whole rewards

    def _first(self, seat: int) -> float:
        return self.first[seat] if self.first else 0.0

    def variance(self, seat: int) -> float:
        """Return the variance of the seat's rewards with n - 1 in the denominator; NaN below two games."""
        if self.games < 2:
            return math.nan
        spread = self.squares[seat] - self.sums[seat] ** 2 / self.games
        return max(0.0, spread) / (self.games - 1)

    def deviation(self, seat: int, reward_range: RewardRange) -> float:
        """Return the standard deviation of the seat's rewards and of two more, one at each end of a range.

        s^2 = (sum r^2 + a^2 + b^2 - (sum r + a + b)^2 / (n + 2)) / (n + 1), for n rewards r and the range
        from a to b. Without the two, a few games that ended alike would count as certain. Their weight
        vanishes as games become many. Source of the idea, for shares: A. Agresti and B. Caffo, "Simple and
        effective confidence intervals for proportions", The American Statistician 54 (2000) 280-288.
        """
        low, high = (end - self._first(seat) for end in reward_range)
        count, total = self.games + 2, self.sums[seat] + low + high
        spread = self.squares[seat] + low * low + high * high - total * total / count
        return math.sqrt(max(0.0, spread) / (count - 1))

    def error(self, seat: int, reward_range: RewardRange) -> float:
        """Return the standard error of the mean reward, :meth:`deviation` / sqrt(n); infinite for n = 0."""
        return self.deviation(seat, reward_range) / math.sqrt(self.games) if self.games else math.inf


class Rounds:
    """The mean rewards of complete rounds, by group: its members in alphabetical order."""

    def __init__(self) -> None:
        self._means: dict[Seating, Payoff] = {}
        self._range: RewardRange = (math.inf, -math.inf)
        self._open: dict[tuple[Seating, int], dict[Seating, Sequence[float]]] = {}

    def add(self, seating: Seating, rewards: Sequence[float], deal: int) -> None:
        """Count a game, which is new; ``deal`` numbers the deals of its group."""
        group = tuple(sorted(seating))
        games = self._open.setdefault((group, deal), {})
        games[seating] = rewards
        if len(games) < orders(group):
            return
        del self._open[group, deal]
        means = [sum(mean_of(uid, *one) for one in games.items()) / len(games) for uid in group]
        self._means.setdefault(group, Payoff.empty(len(group))).add(means, None)
        self._range = min(self._range[0], *means), max(self._range[1], *means)

    def error(self, group: Seating, uid: str, games: float) -> float | None:
        """Return the standard error of a member's mean reward over all orders of seats.

        It is ``None`` if there are fewer than ``FEWEST`` complete rounds, or fewer than ``MOST`` of the
        ``games`` of each order are in them, or if no round of any group ever ended otherwise: the rounds then
        say nothing of how much they vary.
        """
        means, (low, high) = self._means.get(group), self._range
        if means is None or means.games < max(FEWEST, MOST * games) or low == high:
            return None
        return means.error(group.index(uid), self._range)

    def are_few(self, group: Seating) -> bool:
        """Return whether there are rounds, but too few to show how much they vary."""
        return group in self._means and self._means[group].games < FEWEST

    def forget(self, uids: Collection[str]) -> None:
        """Delete the rounds of these members."""
        gone = {*uids}
        self._means = {group: one for group, one in self._means.items() if not gone & {*group}}
        self._open = {key: one for key, one in self._open.items() if not gone & {*key[0]}}


def orders(group: Sequence[str]) -> int:
    """Return the number of different orders of seats of members, some of whom may have several seats."""
    return math.factorial(len(group)) // math.prod(map(math.factorial, Counter(group).values()))


def mean_of(uid: str, seating: Seating, rewards: Sequence[float]) -> float:
    """Return the mean reward of the seats that a member has."""
    return sum(reward for one, reward in zip(seating, rewards, strict=True) if one == uid) / seating.count(
        uid
    )
