"""Rounds: games in which different members play the same deal in all orders of seats.

Luck with the cards is then nearly the same for all of them, so the mean of a round varies less than the mean
of as many independent games.
"""

import math
from collections.abc import Collection, Sequence

from selfplay.population.payoff import Payoff, RewardRange, Seating

MOST = 0.9
"""Share of a group's games in complete rounds from which on the error is that of rounds; others failed."""


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
        if len(games) < math.factorial(len(group)):
            return
        del self._open[group, deal]
        means = [sum(one[names.index(uid)] for names, one in games.items()) / len(games) for uid in group]
        self._means.setdefault(group, Payoff.empty(len(group))).add(means, None)
        self._range = min(self._range[0], *means), max(self._range[1], *means)

    def error(self, group: Seating, uid: str, games: float) -> float | None:
        """Return the standard error of a member's mean reward over all orders of seats.

        It is ``None`` if fewer than ``MOST`` of the ``games`` of each order are in complete rounds, or if no
        round of any group ever ended otherwise: the rounds then say nothing of how much they vary.
        """
        means, (low, high) = self._means.get(group), self._range
        if means is None or means.games < MOST * games or low == high:
            return None
        return means.error(group.index(uid), self._range)

    def forget(self, uids: Collection[str]) -> None:
        """Delete the rounds of these members."""
        gone = {*uids}
        self._means = {group: one for group, one in self._means.items() if not gone & {*group}}
        self._open = {key: one for key, one in self._open.items() if not gone & {*key[0]}}
