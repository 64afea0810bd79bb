"""Which games a tournament plays: every pair in both seat orders, the same deal in both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from selfplay.core import InputError, derive_seed
from selfplay.population import PayoffTable

MAX_GAMES = 10**6
"""The largest number of games of a pair."""
GAMES_PER_CHOICE = 256
"""With a budget, this many games are given to pairs before the payoffs are looked at again."""


@dataclass(frozen=True)
class ScheduledGame:
    """Game ``index`` of a pair of members, who exchange seats from game to game.

    Attributes:
        number: its number in the tournament; more members or more games change no number.
        seating: the member in each seat.
        index: counts the games of the pair, from 0.
        seed: determines the deal and every draw; games 2k and 2k + 1 have the same.
    """

    number: int
    seating: tuple[str, str]
    index: int
    seed: int


class Schedule:
    """The games between members, in batches.

    Args:
        uids: the members.
        games: the number for each pair, with a budget the first ones; rounded up to a multiple of two.
        budget: the total number; after the first games, the rest go to pairs whose payoff is least certain.
        seed: root of the seeds.

    Raises:
        InputError: a number is too large, or the budget is less than the first games.
    """

    def __init__(self, uids: Sequence[str], games: int, budget: int | None, seed: int) -> None:
        self.pairs = sorted(combinations(range(len(uids)), 2), key=lambda pair: (pair[1], pair[0]))
        self.uids = list(uids)
        self.games = games + games % 2
        self.seed = seed
        least = len(self.pairs) * self.games
        if self.games > MAX_GAMES:
            raise InputError("--games", f"{games} games of a pair are too many", f"At most {MAX_GAMES}")
        if budget is not None and budget < least:
            problem = f"{budget} is less than {self.games} games for each of {len(self.pairs)} pairs"
            raise InputError("--budget", problem, f"Give at least {least}, or fewer --games")
        most = len(self.pairs) * MAX_GAMES
        if budget is not None and budget > most:
            problem = f"{budget} games are too many for {len(self.pairs)} pairs"
            raise InputError("--budget", problem, f"Give at most {most}")
        self.total = least if budget is None else budget - budget % 2

    def batches(self, table: PayoffTable) -> Iterator[list[ScheduledGame]]:
        """Yield the games, in batches; ``table`` must have a batch before the next one is asked for.

        The first batch has the first games of every pair, in turns. What follows depends on the table alone.
        """
        yield [self.game(pair, index) for index in range(self.games) for pair in range(len(self.pairs))]
        scheduled = [self.games] * len(self.pairs)
        while (left := self.total - sum(scheduled)) > 0:
            batch = []
            spreads = self._spreads(table)
            for _ in range(0, min(left, GAMES_PER_CHOICE), 2):
                open_pairs = [pair for pair, count in enumerate(scheduled) if count < MAX_GAMES]
                widest = max(open_pairs, key=lambda pair: spreads[pair] / math.sqrt(scheduled[pair]))
                batch += [self.game(widest, scheduled[widest] + order) for order in (0, 1)]
                scheduled[widest] += 2
            yield batch

    def game(self, pair: int, index: int) -> ScheduledGame:
        """Return one game of a pair."""
        first, second = (self.uids[member] for member in self.pairs[pair])
        seating = (first, second) if index % 2 == 0 else (second, first)
        seed = derive_seed(self.seed, "tournament", first, second, index // 2)
        return ScheduledGame(pair * MAX_GAMES + index, seating, index, seed)

    def _spreads(self, table: PayoffTable) -> list[float]:
        """Return the standard deviation of a game of each pair, as :meth:`Payoff.deviation` has it.

        So a pair whose few games ended alike may be played again.
        """
        found = []
        for pair in self.pairs:
            first, second = (self.uids[member] for member in pair)
            sides = [table.payoff(first, second), table.payoff(second, first)]
            squares = [one.deviation(seat, table.reward_range) ** 2 for one in sides for seat in (0, 1)]
            found.append(math.sqrt(sum(squares) / len(squares)))
        return found
