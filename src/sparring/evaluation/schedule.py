"""Which games a tournament plays: every group of members in every order of seats, the same deal in all.

In a game for two the groups are pairs. Elsewhere a group has as many members as the game has seats. With
``repeats``, a member may have several seats, so that what a mixture earns is known.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, permutations
from statistics import NormalDist

from sparring.core import InputError, derive_seed
from sparring.population import PayoffTable

MAX_GAMES = 10**6
"""The largest number of games of a group."""
MAX_SEATS = 7
"""The largest number of seats: every group plays all n! orders of n of them."""
GAMES_PER_CHOICE = 256
"""With a budget, this many games are given to groups before the payoffs are looked at again."""


@dataclass(frozen=True)
class ScheduledGame:
    """Game ``index`` of a group of members, who exchange seats from game to game.

    More members or more games change no ``number``. Each ``deal`` is played in all orders of seats, with the
    same ``seed``, which determines the deal and every draw.
    """

    number: int
    seating: tuple[str, ...]
    index: int
    deal: int
    seed: int


class GameSchedule:
    """The games between members, in batches.

    Each group plays ``games``, rounded up to whole rounds of all orders of seats. A ``budget`` is the total
    number: after the first games of all groups, the rest go where they matter most, see :func:`worth`. With
    ``repeats``, a group may have a member several times, and there is no budget.

    Raises:
        InputError: a number is too large, there are fewer members than seats or too many seats, or the budget
            is less than the first games.
    """

    def __init__(
        self,
        uids: Sequence[str],
        games: int,
        budget: int | None,
        seed: int,
        players: int = 2,
        *,
        repeats: bool = False,
    ) -> None:
        if len(uids) < players and not repeats:
            problem = f"{len(uids)} members cannot take {players} seats"
            raise InputError("members", problem, f"Name {players} or more")
        if players > MAX_SEATS:
            problem = f"{players} seats have {math.factorial(players):,} orders, of which a group plays all"
            raise InputError("players", problem, f"Play a game for at most {MAX_SEATS}")
        # In this order further members change the number of no group.
        groups = combinations_with_replacement if repeats else combinations
        self.groups = sorted(groups(range(len(uids)), players), key=lambda group: group[::-1])
        self.repeats = repeats
        self.uids = list(uids)
        self.round = math.factorial(players)
        self.games = math.ceil(games / self.round) * self.round
        self.most_games = MAX_GAMES - MAX_GAMES % self.round
        self.budget = budget
        self.seed = seed
        least, most = len(self.groups) * self.games, len(self.groups) * self.most_games
        called = "pair" if players == 2 else "group"
        if self.games > self.most_games:
            problem = f"{games} games of a {called} are too many"
            raise InputError("games", problem, f"At most {self.most_games}")
        if budget is not None and budget < least:
            problem = f"{budget} is less than {self.games} games for each of {len(self.groups)} {called}s"
            raise InputError("budget", problem, f"Give at least {least}, or fewer games for each")
        if budget is not None and budget > most:
            problem = f"{budget} games are too many for {len(self.groups)} {called}s"
            raise InputError("budget", problem, f"Give at most {most}")
        self.total = least if budget is None else budget - budget % self.round

    def batches(self, table: PayoffTable) -> Iterator[list[ScheduledGame]]:
        """Yield the games, in batches; ``table`` must have a batch before the next one is asked for.

        The first batch has the first games of every group, in turns. What follows depends on the table alone.
        """
        yield [self.game(group, index) for index in range(self.games) for group in range(len(self.groups))]
        scheduled = [self.games] * len(self.groups)
        while (left := self.total - sum(scheduled)) > 0:
            batch = []
            known = [self._known(group, table) for group in self.groups]
            for _ in range(0, min(left, GAMES_PER_CHOICE), self.round):
                open_groups = [group for group, count in enumerate(scheduled) if count < self.most_games]
                best = max(open_groups, key=lambda group: worth(*known[group], scheduled[group]))
                batch += [self.game(best, scheduled[best] + order) for order in range(self.round)]
                scheduled[best] += self.round
            yield batch

    def game(self, group: int, index: int) -> ScheduledGame:
        """Return one game of a group."""
        orders = _orders(self.groups[group])
        deal, order = divmod(index, len(orders))
        seating = tuple(self.uids[member] for member in orders[order])
        names = [self.uids[member] for member in self.groups[group]]
        seed = derive_seed(self.seed, "tournament", *names, deal)
        return ScheduledGame(group * MAX_GAMES + index, seating, index, deal, seed)

    def numbered(self, number: int) -> ScheduledGame | None:
        """Return the game of a number; ``None`` if no group has such a one."""
        group, index = divmod(number, MAX_GAMES)
        return self.game(group, index) if 0 <= group < len(self.groups) else None

    def _known(self, group: tuple[int, ...], table: PayoffTable) -> tuple[float, float]:
        """Return by how much the first of a pair is ahead and the standard deviation of this in one game.

        In a game for three or more, nobody is ahead, and the deviation is that of a reward.
        """
        names = [self.uids[member] for member in group]
        if len(names) == 2:
            matrix = table.matrix(names)
            games = int(matrix.games_MM[0, 1])
            if games:
                error = float(matrix.advantage_error_MM[0, 1])
                return float(matrix.advantage_MM[0, 1]), error * math.sqrt(games)
        squares = [
            table.payoff(*seating).deviation(seat, table.reward_range) ** 2
            for seating in permutations(names)
            for seat in range(len(seating))
        ]
        return 0.0, math.sqrt(sum(squares) / len(squares))


@lru_cache(maxsize=256)
def _orders(group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the different orders of seats of a group."""
    return list(dict.fromkeys(permutations(group)))


def worth(gap: float, deviation: float, games: int) -> tuple[float, int]:
    """Return what orders groups: what is lost, in expectation, by taking who is ahead for the better one.

    With a standard error e and z = |gap| / e, this is e (phi(z) - z Phi(-z)), with phi and Phi the density
    and the distribution function of the standard normal distribution: the linear loss of Chick and Inoue,
    "New two-stage and sequential procedures for selecting the best simulated system", Operations Research 49
    (2001) 732-743. It is great where the order is open and the error is large; without a gap it is in
    proportion to the error. Where it is equal, fewer games come first.
    """
    error = deviation / math.sqrt(games)
    if not error:
        return 0.0, -games
    normal = NormalDist()
    z = abs(gap) / error
    return error * (normal.pdf(z) - z * normal.cdf(-z)), -games
