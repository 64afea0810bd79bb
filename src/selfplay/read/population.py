"""Who of a population beats whom at one moment of a run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from selfplay.core.confidence_intervals import Interval, wilson_interval

COPY = re.compile(r"(?:(?P<policy>.+)-)?ckpt-(?P<update>\d+)")
"""The uid of a policy's copy in the pool; the policy ``default`` is not named."""


class Meeting(msgspec.Struct, frozen=True):
    """One model's games against another; the games that it neither won nor drew are losses."""

    games: int = 0
    wins: int = 0
    draws: int = 0

    @property
    def score(self) -> float:
        """Wins plus half of the draws, per game."""
        return (self.wins + self.draws / 2) / self.games if self.games else 0.0


@dataclass(frozen=True)
class Standing:
    """What a member scores against another in so many games: wins plus half of the draws, per game."""

    score: Interval
    games: int

    def of_the_other(self) -> "Standing":
        """Return the same games from the other side."""
        low, mid, high = self.score
        return Standing(Interval(1 - high, 1 - mid, 1 - low), self.games)


@dataclass(frozen=True)
class Population:
    """The members of a pool that met another one, at one moment.

    Attributes:
        step: the last update of this moment; ``None`` if it is unknown.
        policies: the members that change while they learn.
        frozen: the others, in the order in which they joined.
        pairs: the known pairs, each in one order or in both.
        ratings: Bradley-Terry ratings with 95% intervals; empty if they are not known.
        cycles: members that each beat the next, and the last the first.
        fades: whether recent games of a policy count more than its old ones; otherwise all count alike.
    """

    step: int | None
    policies: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    pairs: Mapping[tuple[str, str], Standing] = field(default_factory=dict)
    ratings: Mapping[str, Interval] = field(default_factory=dict)
    cycles: tuple[tuple[str, ...], ...] = ()
    fades: bool = True

    @property
    def members(self) -> tuple[str, ...]:
        """All members, policies first."""
        return (*self.policies, *self.frozen)

    @property
    def has_copies(self) -> bool:
        """Whether a frozen copy of a policy is among the members."""
        return any(COPY.fullmatch(uid) for uid in self.frozen)

    def newest(self, most: int) -> list[str]:
        """Return at most so many members in order; the copies that joined first are left out."""
        copies = [uid for uid in self.frozen if COPY.fullmatch(uid)]
        left_out = {*copies[: max(0, len(self.members) - most)]}
        return [uid for uid in self.members if uid not in left_out][: max(0, most)]

    def standing(self, uid: str, other: str) -> Standing | None:
        """Return what a member scores against another; ``None`` if they did not meet."""
        if (found := self.pairs.get((uid, other))) is not None:
            return found
        found = self.pairs.get((other, uid))
        return None if found is None else found.of_the_other()

    def cycle_texts(self) -> list[str]:
        """Return each cycle in words."""
        return [self._cycle_text(cycle) for cycle in self.cycles]

    def no_cycle_text(self) -> str:
        """Return what it means that there is no cycle."""
        copies = {uid for uid in self.frozen if COPY.fullmatch(uid)}
        if len(copies) > 1 and not any(copies >= {*pair} for pair in self.pairs):
            unknown = "Whether the frozen copies beat each other in a circle is not known: they never met"
            return f"{unknown} (selfplay tournament RUN@all plays them)."
        return "No cycle: the pairs whose interval is on one side of 50% are in an order."

    def _cycle_text(self, cycle: tuple[str, ...]) -> str:
        return ", ".join(self._beats_text(*pair) for pair in pairwise((*cycle, cycle[0])))

    def _beats_text(self, uid: str, other: str) -> str:
        found = self.standing(uid, other)
        figures = "" if found is None else f" {standing_text(found)}"
        return f"{uid} beats {other}{figures}"


def standing_text(one: Standing) -> str:
    """Return a score with its interval and the number of games."""
    low, mid, high = (f"{100 * value:.0f}" for value in one.score)
    return f"{mid}% ({low} to {high}, {one.games:,} game{'' if one.games == 1 else 's'})"


def population_of_meetings(
    meetings: Mapping[str, Mapping[str, Meeting]], step: int | None
) -> Population | None:
    """Return the population of a run that has only counts of all its games; ``None`` without any."""
    pairs = {
        (uid, other): Standing(wilson_interval(met.wins + met.draws / 2, met.games), met.games)
        for uid, records in meetings.items()
        for other, met in records.items()
        if uid != other and 0 < met.games >= met.wins + met.draws and min(met.wins, met.draws) >= 0
    }
    members = list(dict.fromkeys(uid for pair in pairs for uid in pair))
    if not members:
        return None
    copies = [uid for uid in members if COPY.fullmatch(uid)]
    fixed = sorted(uid for uid in members if uid.startswith("fixed-"))
    policies = sorted({*members} - {*copies, *fixed})
    copies.sort(key=lambda uid: int(uid.rpartition("-")[2]))
    return Population(step, tuple(policies), (*fixed, *copies), pairs, fades=False)
