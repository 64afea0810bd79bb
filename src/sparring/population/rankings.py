"""What is read off payoffs: several rankings of the same members, who dominates whom, and the cycles."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring.core.confidence_intervals import NORMAL_95, Interval, normal_interval
from sparring.population.meta_strategies import RESAMPLES, ResampledShare, resampled_shares
from sparring.population.payoff import Seating
from sparring.population.payoffs import PayoffMatrix, PayoffTable
from sparring.population.ratings import Rating, Results, TrueSkillRatings, bradley_terry

LEAST_GAMES = 20
"""A pair with fewer games says nothing beyond noise: normal intervals of so few games are too narrow."""
_ROUNDING = 1e-12
_ACCURACY = 1e-6
"""A smaller share in an equilibrium may be the solver's inaccuracy."""


@dataclass(frozen=True, kw_only=True)
class MemberRank:
    """How one member does by each measure. An :class:`Interval` is a 95% interval; unknown is ``None``.

    Attributes:
        uid: the member.
        games: its finished games.
        invalid: those that an invalid move of its own ended.
        score: its mean reward against the field: every other member it met has the same weight; in a game for
            three or more, every order of seats of every group.
        by_seat: the same in each seat, or role of a program.
        bradley_terry: its Bradley-Terry rating.
        trueskill: its TrueSkill rating, mean and standard deviation.
        nash: its share in the Nash equilibrium of maximum entropy, with its resampled range.
        nash_score: its mean reward against that equilibrium, taken as given; unknown in a game that is not
            zero-sum, if it is in the equilibrium and did not play itself.
        alpharank: its share in alpha-rank's stationary distribution, with its resampled range.
        dominated_by: the member that dominates it, if any.
        nash_conv: its NashConv, if somebody computed it: payoffs do not tell it.
        anchored: its rating by its games against the members of a reference pool alone, if it played them.
    """

    uid: str
    games: int
    invalid: int
    score: Interval | None
    by_seat: tuple[Interval | None, ...]
    bradley_terry: Interval | None = None
    trueskill: Rating
    nash: ResampledShare | None = None
    nash_score: Interval | None = None
    alpharank: ResampledShare | None = None
    dominated_by: str | None = None
    nash_conv: float | None = None
    anchored: Interval | None = None


@dataclass(frozen=True)
class Cycle:
    """Members among which nobody is best: ``group`` all of them, ``shortest`` each beating the next."""

    group: tuple[str, ...]
    shortest: tuple[str, ...]


@dataclass(frozen=True)
class Rankings:
    """The rankings of a game. In one for three or more, they are mean rewards and TrueSkill alone.

    Attributes:
        matrix: the payoffs that they are read off, members in the order they were given; ``None`` in a game
            for three or more.
        members: best expected score first.
        cycles: games that go in circles.
        seats: the names of the seats.
        reference_pool: the version of the reference pool to which ratings are anchored, if it took part.
    """

    matrix: PayoffMatrix | None
    members: list[MemberRank]
    cycles: list[Cycle]
    seats: tuple[str, ...]
    reference_pool: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values.

        An interval is [low, mid, high], a TrueSkill rating [mean, standard deviation], and a share has its
        resampled range beside it, which is that of so many ``resamples``.
        """
        return {
            "members": [
                {name: _json_able(value) for name, value in vars(member).items()} for member in self.members
            ],
            "seats": list(self.seats),
            "resamples": RESAMPLES,
            "cycles": [{"group": list(one.group), "shortest": list(one.shortest)} for one in self.cycles],
            "reference_pool": self.reference_pool,
        }


def rank(
    table: PayoffTable,
    members: Sequence[str],
    games: Iterable[tuple[Seating, Sequence[float]]],
    seats: Sequence[str] = (),
) -> Rankings:
    """Rank members by every measure.

    Nash averaging and alpha-rank need the payoff of every pair, and are ``None`` without it. In a game for
    three or more, they and Bradley-Terry ratings are left out: they are defined by who beats whom in pairs,
    and alpha-rank over several populations would need games in which members meet themselves.

    Args:
        table: the payoffs.
        members: the members to rank; others are left out.
        games: the same games with their rewards, in an order that does not depend on which ended first, for
            TrueSkill.
        seats: the names of the seats; by default their numbers.

    Raises:
        InputError: the extra ``populations`` is not installed.
    """
    seats = tuple(seats) or tuple(map(str, range(table.seats)))
    if table.seats > 2:
        return _rank_groups(table, members, games, seats)
    matrix = table.matrix(members)
    rated = _trueskill(members, games)
    bradley_terry_M = bradley_terry(Results.of(table, list(members)))
    nash_M = resampled_shares("nash", matrix)
    alpharank_M = resampled_shares("alpharank", matrix)
    below = dominated(matrix)
    ranks = [
        MemberRank(
            uid=uid,
            games=int(matrix.games_MM[row].sum()),
            invalid=_invalid(table, members, uid),
            score=_field_score(matrix, row),
            by_seat=_by_seat(table, uid, members),
            bradley_terry=bradley_terry_M[row],
            trueskill=rated[uid],
            nash=None if nash_M is None else nash_M[row],
            nash_score=None if nash_M is None else _mixture_score(matrix, row, nash_M),
            alpharank=None if alpharank_M is None else alpharank_M[row],
            dominated_by=below.get(uid),
        )
        for row, uid in enumerate(members)
    ]
    found = [
        Cycle(_in_order(group, members), tuple(way)) for group, way in cycles(matrix.members, beats(matrix))
    ]
    return Rankings(matrix, _best_first(ranks), found, seats)


def _rank_groups(
    table: PayoffTable,
    members: Sequence[str],
    games: Iterable[tuple[Seating, Sequence[float]]],
    seats: tuple[str, ...],
) -> Rankings:
    rated = _trueskill(members, games)
    ranks = []
    for uid in members:
        mine = [
            (payoff, [seat for seat, one in enumerate(seating) if one == uid])
            for seating, payoff in table.items()
            if uid in seating and {*seating} <= {*members} and len({*seating}) > 1
        ]
        ranks.append(
            MemberRank(
                uid=uid,
                games=sum(payoff.games for payoff, _ in mine),
                invalid=sum(payoff.invalid[seat] for payoff, held in mine for seat in held),
                score=table.score(uid, members),
                by_seat=_by_seat(table, uid, members),
                trueskill=rated[uid],
            )
        )
    return Rankings(None, _best_first(ranks), [], seats)


def _by_seat(table: PayoffTable, uid: str, members: Sequence[str]) -> tuple[Interval | None, ...]:
    return tuple(table.score_in(seat, uid, members) for seat in range(table.seats))


def _best_first(ranks: list[MemberRank]) -> list[MemberRank]:
    return sorted(ranks, key=lambda one: -math.inf if one.score is None else one.score.mid, reverse=True)


def _trueskill(members: Sequence[str], games: Iterable[tuple[Seating, Sequence[float]]]) -> dict[str, Rating]:
    system = TrueSkillRatings()
    ratings = dict.fromkeys(members, system.default)
    for seating, rewards in games:
        if len(set(seating)) == len(seating) and all(uid in ratings for uid in seating):
            new = system.rate([ratings[uid] for uid in seating], list(rewards))
            ratings.update(zip(seating, new, strict=True))
    return ratings


def _field_score(matrix: PayoffMatrix, row: int) -> Interval | None:
    met_M = np.isfinite(matrix.mean_MM[row])
    met_M[row] = False
    if not met_M.any():
        return None
    return normal_interval(
        float(matrix.mean_MM[row, met_M].mean()),
        float(np.sqrt((matrix.error_MM[row, met_M] ** 2).sum()) / met_M.sum()),
    )


def _mixture_score(matrix: PayoffMatrix, row: int, mixture: Sequence[ResampledShare]) -> Interval | None:
    weights_M = np.array([one.share for one in mixture])
    used_M = weights_M > _ACCURACY
    if not matrix.known_MM[row, used_M].all():
        return None
    errors_M = weights_M[used_M] * matrix.error_MM[row, used_M]
    return normal_interval(
        float(matrix.mean_MM[row, used_M] @ weights_M[used_M]), float(np.sqrt((errors_M**2).sum()))
    )


def _invalid(table: PayoffTable, members: Sequence[str], uid: str) -> int:
    others = [other for other in members if other != uid]
    first = sum(table.payoff(uid, other).invalid[0] for other in others)
    return first + sum(table.payoff(other, uid).invalid[1] for other in others)


def _in_order(group: set[str], members: Sequence[str]) -> tuple[str, ...]:
    return tuple(uid for uid in members if uid in group)


def _json_able(value: Any) -> Any:
    if isinstance(value, ResampledShare):
        return {"share": value.share, "resampled_range": [value.low, value.high]}
    return list(value) if isinstance(value, tuple) else value


def beats(matrix: PayoffMatrix) -> NDArray[np.bool_]:
    """Return for each row and column whether the row's mean reward is above 0 beyond noise.

    That is, the lower bound of its 95% interval is above 0; for a game that is not zero-sum, of half of what
    the row earns more than the column. The standard error takes two more games into account, one at each end
    of the range of rewards (:meth:`Payoff.deviation`). A pair with fewer than 20 games has no edge.
    """
    low_MM = np.nan_to_num(matrix.advantage_MM - NORMAL_95 * matrix.advantage_error_MM, nan=-1.0)
    beats_MM: NDArray[np.bool_] = (low_MM > 0) & (matrix.games_MM >= LEAST_GAMES)
    return beats_MM


def dominated(matrix: PayoffMatrix) -> dict[str, str]:
    """Return the members that another one dominates, each with the one that does so most clearly.

    A member dominates another if its mean reward is at least as high against every member, the two
    themselves included, and against at least one of them higher beyond noise: the lower bound of the 95%
    interval of the difference is above 0, and neither has played fewer than 20 games against it. A pair that
    did not meet says nothing, so neither is dominated. What a member earns against itself is 0 in a zero-sum
    game; in another one it is not known without such games, and then the two are compared against all others.
    """
    certain_MM = matrix.games_MM >= LEAST_GAMES
    if matrix.is_zero_sum:
        np.fill_diagonal(certain_MM, True)
    knows_itself_M = certain_MM.diagonal()
    found: dict[str, str] = {}
    for row, uid in enumerate(matrix.members):
        clearest = 0.0
        for other, better in enumerate(matrix.members):
            if other == row:
                continue
            gain_M = matrix.mean_MM[other] - matrix.mean_MM[row]
            error_M = np.hypot(matrix.error_MM[other], matrix.error_MM[row])
            beyond_M = np.nan_to_num(gain_M - NORMAL_95 * error_M, nan=-1.0, neginf=-1.0)
            beyond_M[~(certain_MM[other] & certain_MM[row])] = -1.0
            compared_M = np.ones(len(gain_M), dtype=bool)
            compared_M[row], compared_M[other] = knows_itself_M[row], knows_itself_M[other]
            if (gain_M >= -_ROUNDING)[compared_M].all() and beyond_M.max() > clearest:
                found[uid], clearest = better, float(beyond_M.max())
    return found


def cycles(members: tuple[str, ...], beats_MM: NDArray[np.bool_]) -> list[tuple[set[str], list[str]]]:
    """Return the groups in which everybody beats everybody along a chain, each with its shortest cycle.

    A group is a strongly connected component of the response graph with more than one member. In a cycle,
    each member beats the next, and the last beats the first. Largest groups come first.
    """
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(members)))
    graph.add_edges_from(map(tuple, np.argwhere(beats_MM).tolist()))
    groups = sorted(
        (sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1),
        key=lambda group: (-len(group), group),
    )
    found = []
    for group in groups:
        inside = graph.subgraph(group)
        around = [networkx.shortest_path(inside, second, first) for first, second in inside.edges]
        shortest = min((_from_lowest(cycle) for cycle in around), key=lambda cycle: (len(cycle), cycle))
        found.append(({members[one] for one in group}, [members[one] for one in shortest]))
    return found


def _from_lowest(cycle: list[int]) -> list[int]:
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]
