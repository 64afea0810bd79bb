"""Which games a tournament plays: every group of members in every order of seats, the same deal in all.

In a game for two the groups are pairs. Elsewhere a group has as many members as the game has seats.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, permutations

from selfplay.core import InputError, derive_seed
from selfplay.population import PayoffTable

MAX_GAMES = 10**6
"""The largest number of games of a group."""
MAX_SEATS = 7
"""The largest number of seats: every group plays all n! orders of n of them."""
GAMES_PER_CHOICE = 256
"""With a budget, this many games are given to groups before the payoffs are looked at again."""


@dataclass(frozen=True)
class ScheduledGame:
    """Game ``index`` of a group of members, who exchange seats from game to game.

    Attributes:
        number: its number in the tournament; more members or more games change no number.
        seating: the member in each seat.
        index: counts the games of the group, from 0.
        seed: determines the deal and every draw. It is the same in all orders of seats, so in a game for two
            games 2k and 2k + 1 have the same.
    """

    number: int
    seating: tuple[str, ...]
    index: int
    seed: int


class Schedule:
    """The games between members, in batches.

    Args:
        uids: the members.
        games: the number for each group, with a budget the first ones; rounded up to whole rounds of all
            orders of seats.
        budget: the total number; after the first games, the rest go to groups whose payoff is least certain.
        seed: root of the seeds.
        players: the number of seats.

    Raises:
        InputError: a number is too large, there are fewer members than seats or too many seats, or the budget
            is less than the first games.
    """

    def __init__(
        self, uids: Sequence[str], games: int, budget: int | None, seed: int, players: int = 2
    ) -> None:
        if len(uids) < players:
            problem = f"{len(uids)} members cannot take {players} seats"
            raise InputError("MEMBER", problem, f"Name {players} or more")
        if players > MAX_SEATS:
            problem = f"{players} seats have {math.factorial(players):,} orders, of which a group plays all"
            raise InputError("--players", problem, f"Play a game for at most {MAX_SEATS}")
        # In this order further members change the number of no group.
        self.groups = sorted(combinations(range(len(uids)), players), key=lambda group: group[::-1])
        self.uids = list(uids)
        self.round = math.factorial(players)
        self.games = math.ceil(games / self.round) * self.round
        self.most_games = MAX_GAMES - MAX_GAMES % self.round
        self.seed = seed
        least, most = len(self.groups) * self.games, len(self.groups) * self.most_games
        called = "pair" if players == 2 else "group"
        if self.games > self.most_games:
            problem = f"{games} games of a {called} are too many"
            raise InputError("--games", problem, f"At most {self.most_games}")
        if budget is not None and budget < least:
            problem = f"{budget} is less than {self.games} games for each of {len(self.groups)} {called}s"
            raise InputError("--budget", problem, f"Give at least {least}, or fewer --games")
        if budget is not None and budget > most:
            problem = f"{budget} games are too many for {len(self.groups)} {called}s"
            raise InputError("--budget", problem, f"Give at most {most}")
        self.total = least if budget is None else budget - budget % self.round

    def batches(self, table: PayoffTable) -> Iterator[list[ScheduledGame]]:
        """Yield the games, in batches; ``table`` must have a batch before the next one is asked for.

        The first batch has the first games of every group, in turns. What follows depends on the table alone.
        """
        yield [self.game(group, index) for index in range(self.games) for group in range(len(self.groups))]
        scheduled = [self.games] * len(self.groups)
        while (left := self.total - sum(scheduled)) > 0:
            batch = []
            spreads = self._spreads(table)
            for _ in range(0, min(left, GAMES_PER_CHOICE), self.round):
                open_groups = [group for group, count in enumerate(scheduled) if count < self.most_games]
                widest = max(open_groups, key=lambda group: _uncertainty(spreads[group], scheduled[group]))
                batch += [self.game(widest, scheduled[widest] + order) for order in range(self.round)]
                scheduled[widest] += self.round
            yield batch

    def game(self, group: int, index: int) -> ScheduledGame:
        """Return one game of a group."""
        names = [self.uids[member] for member in self.groups[group]]
        deal, order = divmod(index, self.round)
        seating = next(islice(permutations(names), order, None))
        seed = derive_seed(self.seed, "tournament", *names, deal)
        return ScheduledGame(group * MAX_GAMES + index, seating, index, seed)

    def numbered(self, number: int) -> ScheduledGame | None:
        """Return the game of a number; ``None`` if no group has such a one."""
        group, index = divmod(number, MAX_GAMES)
        return self.game(group, index) if 0 <= group < len(self.groups) else None

    def _spreads(self, table: PayoffTable) -> list[float]:
        """Return the standard deviation of a game of each group, as :meth:`Payoff.deviation` has it.

        So a group whose few games ended alike may be played again.
        """
        found = []
        for group in self.groups:
            names = [self.uids[member] for member in group]
            squares = [
                table.payoff(*seating).deviation(seat, table.reward_range) ** 2
                for seating in permutations(names)
                for seat in range(len(seating))
            ]
            found.append(math.sqrt(sum(squares) / len(squares)))
        return found


def _uncertainty(spread: float, games: int) -> tuple[float, int]:
    """Return what orders groups: the standard error of the payoff and, where it is equal, fewer games."""
    return spread / math.sqrt(games), -games
