"""PayoffGames: the games between frozen members that fill a payoff matrix, and the mixture solved from it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring.population.meta_strategies import meta_strategy, nash_of_columns
from sparring.population.payoffs import PayoffTable

MaySit = Callable[[str, str], bool]
"""Whether two members may have the two seats, in this order."""


def anybody(first: str, second: str) -> bool:
    """Let everybody have either seat, but nobody both: that is a draw on average."""
    return first != second


@dataclass(frozen=True)
class PayoffGame:
    """A game that is to be played. Its number counts the payoff games of a run from 0."""

    number: int
    first: str
    second: str


class PayoffGames:
    """Which games between frozen members are to be played, and what those that were played say.

    Training never plays two frozen members against each other. So when a member joins, games against each of
    the others join the list, half of them in either order of seats.

    If each seat has members of its own, a member that may have both plays itself too: what the first seat
    earns then is no draw on average.

    Args:
        per_pair: the number of games of each pair; rounded up to an even one, so that seats are balanced.

    Attributes:
        table: the payoffs, also of members that were dropped.
        waiting: the games that nobody plays yet, in order.
    """

    def __init__(self, per_pair: int) -> None:
        self.per_pair = per_pair + per_pair % 2
        self.table = PayoffTable()
        self.waiting: list[PayoffGame] = []
        self._next_number = 0
        self._mixtures: dict[tuple[tuple[str, ...], tuple[str, ...], int], list[float]] = {}

    def join(self, uid: str, others: Sequence[str], may_sit: MaySit = anybody) -> None:
        """Put the games of a new member against the others and itself on the list, in the orders of seats
        that they may have."""
        for other in (*others, uid):
            orders = _orders(uid, other, may_sit)
            for turn in range(self.per_pair if orders else 0):
                self.waiting.append(PayoffGame(self._next_number, *orders[turn % len(orders)]))
                self._next_number += 1

    def drop(self, uids: Collection[str]) -> None:
        """Take the games of members that left off the list; what they earned is kept."""
        self.waiting = [one for one in self.waiting if not {one.first, one.second} & {*uids}]

    def forget(self, uids: Collection[str]) -> None:
        """Take the games of these members off the list, and delete what they earned."""
        self.drop(uids)
        self.table.forget(uids)
        self._mixtures.clear()

    def take(self, most: int | None = None) -> list[PayoffGame]:
        """Return the first games of the list, at most ``most`` or all of them; somebody plays them now."""
        most = len(self.waiting) if most is None else most
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def add(
        self, number: int, seating: Sequence[str], rewards: Sequence[float], invalid_seat: int | None = None
    ) -> None:
        """Count a game that was played; see :meth:`PayoffTable.add`."""
        self.table.add(number, seating, rewards, invalid_seat)
        self._mixtures.clear()

    def add_failure(self, number: int, seating: Sequence[str]) -> None:
        """Count a game that could not be finished. It is not tried again."""
        self.table.add_failure(number, seating)

    def mixture(self, uids: Sequence[str], rivals: Sequence[str] = (), seat: int = 0) -> list[float]:
        """Return the probability of each of these members in the Nash equilibrium of maximum entropy.

        An entry of the matrix is half of what the row earns more than the column, on average over both
        seats. A pair that has not played counts as 0, a draw. See :func:`meta_strategy`. What the solver
        gives is rounded to its accuracy, so that equal members are equal.

        Args:
            uids: the members.
            rivals: who may have the other seat, if the two seats have different members; an entry is then
                of this order of seats alone.
            seat: the members' seat, if they have ``rivals``: 0 or 1.
        """
        key = tuple(uids), tuple(rivals), seat
        if key not in self._mixtures:
            if rivals:
                weights = nash_of_columns(self._against(uids, rivals, seat))
            else:
                weights = meta_strategy("nash", np.nan_to_num(self.table.matrix(uids).advantage_MM, nan=0.0))
            self._mixtures[key] = [round(float(weight), 4) for weight in weights]
        return self._mixtures[key]

    def _against(self, uids: Sequence[str], rivals: Sequence[str], seat: int) -> NDArray[np.float64]:
        """Return half of what a rival earns more than a member, which has this seat; 0 without games."""
        payoffs_RC = np.zeros((len(rivals), len(uids)))
        for row, rival in enumerate(rivals):
            for column, uid in enumerate(uids):
                seating = (uid, rival) if seat == 0 else (rival, uid)
                if self.table.payoff(*seating).games:
                    earned, lost = (self.table.mean(seating, one) for one in (1 - seat, seat))
                    payoffs_RC[row, column] = (earned - lost) / 2
        return payoffs_RC

    def unplayed_pairs(self, uids: Sequence[str], may_sit: MaySit = anybody) -> int:
        """Return the number of pairs of these members that may play and have not finished a game."""
        pairs = (_orders(*pair, may_sit) for pair in combinations_with_replacement(uids, 2))
        return sum(bool(pair) and not any(self.table.payoff(*one).games for one in pair) for pair in pairs)

    def state_dict(self) -> dict[str, Any]:
        """Return the payoffs and the list as JSON-able data; games that are being played are not in it."""
        return {
            "table": self.table.state_dict(),
            "waiting": [list(astuple(one)) for one in self.waiting],
            "next_number": self._next_number,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self.table.load_state_dict(state["table"])
        self.waiting = [PayoffGame(*one) for one in state["waiting"]]
        self._next_number = state["next_number"]
        self._mixtures.clear()


def _orders(one: str, other: str, may_sit: MaySit) -> list[tuple[str, str]]:
    """Return the orders of seats that two members, or one twice, may have."""
    return [seats for seats in dict.fromkeys(((one, other), (other, one))) if may_sit(*seats)]
