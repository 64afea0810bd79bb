"""Standings: who of a pool beats whom now, with intervals, ratings and cycles."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparring.core.confidence_intervals import Interval, wilson_interval
from sparring.population.model_pool import ModelPool
from sparring.population.rankings import LEAST_GAMES, cycles
from sparring.population.ratings import Results, bradley_terry


@dataclass(frozen=True)
class Standing:
    """What a member scores against another: its share of wins, a draw being half of one, with 95% (Wilson).

    ``games`` are those of the two, all with the same weight or with fading ones.
    """

    score: Interval
    games: int

    def of_the_other(self) -> "Standing":
        """Return the same games from the other side."""
        low, mid, high = self.score
        return Standing(Interval(1 - high, 1 - mid, 1 - low), self.games)


class StandingsLine(msgspec.Struct):
    """A line of ``standings.jsonl``: the standings after an update.

    Attributes:
        step: the update.
        policies: see :class:`Standings`; so ``frozen``, and ``cycles``.
        pairs: ``[member, other, low, score, high, games]`` of each pair that is not the same as in the line
            before; without games, the two are as if they had not met, since one of them started again.
        ratings: ``[low, rating, high]`` by member.
    """

    step: int
    policies: list[str]
    frozen: list[str]
    pairs: list[tuple[str, str, float, float, float, int]]
    ratings: dict[str, tuple[float, float, float]]
    cycles: list[list[str]]


@dataclass(frozen=True)
class Standings:
    """The members of a pool that met another one and may still play, and what is known of them.

    Attributes:
        policies: those that are in training, or averages of such.
        frozen: the others, in the order in which they joined the pool.
        pairs: what the first member scores against the second, for every two that met; each pair once.
        ratings: the Bradley-Terry rating of each member with its 95% interval; see :func:`bradley_terry`.
            They compare only members that games connect, so if there are several groups, only the members of
            the largest one have ratings.
        cycles: members that each beat the next, and the last the first, beyond their 95% intervals: the
            shortest cycle of each group of members that are connected by such. Fewer than ``LEAST_GAMES``
            games of two say nothing.
    """

    policies: tuple[str, ...]
    frozen: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Standing]
    ratings: Mapping[str, Interval]
    cycles: Sequence[Sequence[str]]


def standings(pool: ModelPool) -> Standings:
    """Return the standings of a pool now.

    All games of two frozen members count alike. A policy changes, so of its games the recent ones count most:
    see :class:`RecentResults`. Retired copies are left out.
    """
    policies = tuple(one.uid for one in pool.opponents() if one.kind == "policy")
    frozen = [one.uid for one in pool.opponents() if one.kind != "policy" and one.retired is None]
    everybody = [*policies, *frozen]
    records = {
        (uid, other): found
        for place, uid in enumerate(everybody)
        for other in everybody[place + 1 :]
        if (found := _record(pool, uid, other, uid in policies)).met
    }
    pairs = {pair: record.standing() for pair, record in records.items()}
    met = {uid for pair in pairs for uid in pair}
    members = [uid for uid in everybody if uid in met]
    rated = [uid for uid in members if uid in _largest_group(pairs)]
    return Standings(
        policies=tuple(uid for uid in policies if uid in met),
        frozen=tuple(uid for uid in frozen if uid in met),
        pairs=pairs,
        ratings=dict(zip(rated, bradley_terry(_results(rated, records)), strict=True)) if rated else {},
        cycles=[shortest for _, shortest in cycles(tuple(members), _beats(members, pairs))],
    )


@dataclass(frozen=True)
class _Record:
    """The games of two: ``met``, and as many of equal weight as say the same, by how they ended."""

    met: int
    games: float
    wins: float
    draws: float

    @property
    def losses(self) -> float:
        return max(0.0, self.games - self.wins - self.draws)

    def standing(self) -> Standing:
        return Standing(wilson_interval(min(self.wins + self.draws / 2, self.games), self.games), self.met)


def _record(pool: ModelPool, uid: str, other: str, is_policy: bool) -> _Record:
    """Return the games of a member, a policy or not, against one that comes after it."""
    if not is_policy:
        record = pool.matches.record(uid, other)
        return _Record(record.games, float(record.games), float(record.wins), float(record.draws))
    recent = pool.recent.record(uid, other)
    games = recent.effective_games
    scale = games / recent.games if recent.games else 0.0
    return _Record(recent.met, games, min(recent.wins * scale, games), recent.draws * scale)


def _largest_group(pairs: Collection[tuple[str, str]]) -> set[str]:
    groups: list[set[str]] = []
    for pair in pairs:
        joined = [group for group in groups if group & {*pair}]
        groups = [set(pair).union(*joined), *(group for group in groups if group not in joined)]
    return max(reversed(groups), key=len, default=set())


def _results(members: Sequence[str], records: dict[tuple[str, str], _Record]) -> Results:
    wins_MM, draws_MM = np.zeros((len(members), len(members))), np.zeros((len(members), len(members)))
    place = {uid: row for row, uid in enumerate(members)}
    for (uid, other), one in records.items():
        if uid not in place:
            continue
        row, column = place[uid], place[other]
        wins_MM[row, column], wins_MM[column, row] = one.wins, one.losses
        draws_MM[row, column] = draws_MM[column, row] = one.draws
    return Results(wins_MM, draws_MM)


def _beats(members: Sequence[str], pairs: Mapping[tuple[str, str], Standing]) -> NDArray[np.bool_]:
    beats_MM = np.zeros((len(members), len(members)), dtype=np.bool_)
    place = {uid: row for row, uid in enumerate(members)}
    for (uid, other), one in pairs.items():
        if one.games < LEAST_GAMES:
            continue
        beats_MM[place[uid], place[other]] = one.score.low > 0.5
        beats_MM[place[other], place[uid]] = one.score.high < 0.5
    return beats_MM
