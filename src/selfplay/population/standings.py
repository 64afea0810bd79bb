"""Standings: who of a pool beats whom now, with intervals, ratings and cycles."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfplay.core.confidence_intervals import Interval, wilson_interval
from selfplay.population.bradley_terry import Results, bradley_terry
from selfplay.population.model_pool import ModelPool
from selfplay.population.rankings import LEAST_GAMES, cycles


@dataclass(frozen=True)
class Standing:
    """What a member scores against another: its share of wins, a draw being half of one.

    Attributes:
        score: the share with its 95% interval (Wilson's).
        games: the games of the two, all with the same weight or with fading ones.
        wins: of so many games of equal weight as say the same.
        losses: likewise.
        draws: likewise.
    """

    score: Interval
    games: int
    wins: float
    losses: float
    draws: float


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
    pairs: dict[tuple[str, str], Standing]
    ratings: dict[str, Interval]
    cycles: list[list[str]]


def standings(pool: ModelPool) -> Standings:
    """Return the standings of a pool now.

    All games of two frozen members count alike. A policy changes, so of its games the recent ones count most:
    see :class:`RecentResults`. Retired copies are left out.
    """
    policies = tuple(one.uid for one in pool.opponents() if one.kind == "policy")
    frozen = [one.uid for one in pool.opponents() if one.kind != "policy" and one.retired is None]
    everybody = [*policies, *frozen]
    pairs = {
        (uid, other): found
        for place, uid in enumerate(everybody)
        for other in everybody[place + 1 :]
        if (found := _standing(pool, uid, other, uid in policies)).games
    }
    met = {uid for pair in pairs for uid in pair}
    members = [uid for uid in everybody if uid in met]
    rated = [uid for uid in members if uid in _largest_group(pairs)]
    return Standings(
        policies=tuple(uid for uid in policies if uid in met),
        frozen=tuple(uid for uid in frozen if uid in met),
        pairs=pairs,
        ratings=dict(zip(rated, bradley_terry(_results(rated, pairs)), strict=True)) if rated else {},
        cycles=[shortest for _, shortest in cycles(tuple(members), _beats(members, pairs))],
    )


def _standing(pool: ModelPool, uid: str, other: str, is_policy: bool) -> Standing:
    """Return the standing of a member, a policy or not, against one that comes after it."""
    if is_policy:
        recent = pool.recent.record(uid, other)
        met, games, counted = recent.met, recent.effective_games, recent.games
        wins, draws = recent.wins, recent.draws
    else:
        record = pool.matches.record(uid, other)
        met, games, counted = record.games, float(record.games), float(record.games)
        wins, draws = float(record.wins), float(record.draws)
    scale = games / counted if counted else 0.0
    wins, draws = min(wins * scale, games), draws * scale
    losses = max(0.0, games - wins - draws)
    points = min(wins + draws / 2, games)
    return Standing(wilson_interval(points, games), met, wins, losses, draws)


def _largest_group(pairs: Collection[tuple[str, str]]) -> set[str]:
    """Return the largest set of members that games connect, the first of several."""
    groups: list[set[str]] = []
    for pair in pairs:
        joined = [group for group in groups if group & {*pair}]
        groups = [set(pair).union(*joined), *(group for group in groups if group not in joined)]
    return max(reversed(groups), key=len, default=set())


def _results(members: Sequence[str], pairs: dict[tuple[str, str], Standing]) -> Results:
    wins_MM, draws_MM = np.zeros((len(members), len(members))), np.zeros((len(members), len(members)))
    place = {uid: row for row, uid in enumerate(members)}
    for (uid, other), one in pairs.items():
        if uid not in place:
            continue
        row, column = place[uid], place[other]
        wins_MM[row, column], wins_MM[column, row] = one.wins, one.losses
        draws_MM[row, column] = draws_MM[column, row] = one.draws
    return Results(wins_MM, draws_MM)


def _beats(members: Sequence[str], pairs: dict[tuple[str, str], Standing]) -> NDArray[np.bool_]:
    """Return whether the row's interval against the column is above one half, in enough games."""
    beats_MM = np.zeros((len(members), len(members)), dtype=np.bool_)
    place = {uid: row for row, uid in enumerate(members)}
    for (uid, other), one in pairs.items():
        if one.games < LEAST_GAMES:
            continue
        beats_MM[place[uid], place[other]] = one.score.low > 0.5
        beats_MM[place[other], place[uid]] = one.score.high < 0.5
    return beats_MM
