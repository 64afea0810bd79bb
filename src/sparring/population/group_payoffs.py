"""GroupPayoffs: what each member earns beside every group of others, and its gain over a mixture."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sparring.core.confidence_intervals import Interval, normal_interval
from sparring.population.payoff import orders
from sparring.population.payoffs import PayoffMatrix, PayoffTable

_ROUNDING = 1e-9


@dataclass(frozen=True)
class GroupPayoffs:
    """What each of M members earns, who may have any of S seats.

    Each array has S axes of length M: first who earns it, then who has the other seats, in any order. So for
    two seats they are matrices.

    Attributes:
        members: the members, in the order of every axis.
        mean: the mean reward over all orders of seats; 0 for groups that did not meet.
        error: its standard error; 0 for groups that did not meet.
        games: the number of games.
    """

    members: tuple[str, ...]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    games: NDArray[np.int64]

    @classmethod
    def of(cls, table: PayoffTable, members: Sequence[str]) -> Self:
        """Return the payoffs between these members."""
        shape = (len(members),) * table.seats
        mean, error, games = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
        for others in combinations_with_replacement(range(len(members)), table.seats - 1):
            for own, uid in enumerate(members):
                found = table.beside(uid, [members[one] for one in others])
                if found[2]:
                    for order in {*permutations(others)}:
                        mean[own, *order], error[own, *order], games[own, *order] = found
        return cls(tuple(members), mean, error, games)

    @property
    def knows_copies(self) -> bool:
        """Whether every member met itself."""
        every = range(len(self.members))
        return all(self.games[(one,) * self.games.ndim] for one in every)

    @property
    def matrix(self) -> PayoffMatrix:
        """What the row earns in one seat against the column in all others."""
        rows, columns = np.indices((len(self.members),) * 2)
        place = (rows, *(columns,) * (self.mean.ndim - 1))
        return PayoffMatrix(self.members, self.mean[place], self.error[place], self.games[place])


def gain_over_mixture(table: PayoffTable, uid: str, mixture: Mapping[str, float]) -> Interval:
    """Return what a member gains over a mixture of others that has all other seats, summed over the seats.

    In each seat, it is what the member earns more than the mixture does there. So its expectation is at most
    the mixture's NashConv. The 95% interval is that of the games; the member's are independent of the
    mixture. What all seats earn together has an error of at most the sum of their errors, and none if it is
    always the same. If the mixture did not meet itself, because a game for two is zero-sum, and an invalid
    move pays otherwise, it is taken from the games of the member.

    Raises:
        ValueError: some of these members did not meet.
    """
    seats, drawn = table.seats, {one: weight for one, weight in mixture.items() if weight}
    answered = [(others, chance, *table.beside(uid, others)) for others, chance in _drawn(drawn, seats - 1)]
    gain = variance = 0.0
    for others, chance, mean, error, games in answered:
        if not games:
            raise ValueError(f"{uid} did not meet {others}")
        gain += seats * chance * mean
        variance += (seats * chance * error) ** 2
    groups = [*_drawn(drawn, seats)]
    if seats == 2 and not all(table.beside(one, [one])[2] for one in drawn):
        groups = [((uid, *others), chance) for others, chance, *_ in answered]
    constant = constant_total(table)
    for group, chance in groups:
        mean, error = (constant, 0.0) if constant is not None else _total(table, group)
        gain -= chance * mean
        variance += (chance * error) ** 2
    return normal_interval(gain, math.sqrt(variance))


def _drawn(mixture: Mapping[str, float], seats: int) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield who may have so many seats, whose members are drawn independently, and how likely that is."""
    for group in combinations_with_replacement(mixture, seats):
        yield group, orders(group) * math.prod(mixture[one] for one in group)


def constant_total(table: PayoffTable) -> float | None:
    """Return what all seats earn together if that is the same in every game, but for rounding."""
    low, high = table.totals
    return low if high - low <= _ROUNDING * max(1.0, *map(abs, table.reward_range)) else None


def _total(table: PayoffTable, group: Sequence[str]) -> tuple[float, float]:
    """Return what all seats of a group earn together, and an upper bound of its standard error."""
    mean = error = 0.0
    for uid, seats in Counter(group).items():
        others = list(group)
        others.remove(uid)
        own, own_error, games = table.beside(uid, others)
        if not games:
            raise ValueError(f"{group} did not meet")
        mean += seats * own
        error += seats * own_error
    return mean, error
