"""Who of a population beats whom, at some moments of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted
from sparring.population.pool_members import copy_of
from sparring.population.standings import Standing, Standings, StandingsLine
from sparring.view.files import decoded
from sparring.view.metrics import LineTail

MAX_MOMENTS = 24
"""At most this many moments are kept, spread over the run, and the newest."""


@dataclass(frozen=True, kw_only=True)
class Population(Standings):
    """The members of a pool that met another one, after update ``step``."""

    step: int

    @property
    def members(self) -> tuple[str, ...]:
        """All members, policies first."""
        return (*self.policies, *self.frozen)

    @property
    def has_copies(self) -> bool:
        """Whether a frozen copy of a policy is among the members."""
        return any(map(copy_of, self.frozen))

    @property
    def frozen_met(self) -> bool:
        """Whether two frozen members met."""
        return any({*pair}.issubset(self.frozen) for pair in self.pairs)

    def newest(self, most: int) -> list[str]:
        """Return at most so many members in order; the copies that joined first are left out."""
        copies = [uid for uid in self.frozen if copy_of(uid)]
        left_out = {*copies[: max(0, len(self.members) - most)]}
        return [uid for uid in self.members if uid not in left_out][: max(0, most)]

    def standing(self, uid: str, other: str) -> Standing | None:
        """Return what a member scores against another; ``None`` if they did not meet."""
        if (found := self.pairs.get((uid, other))) is not None:
            return found
        found = self.pairs.get((other, uid))
        return None if found is None else found.of_the_other()

    def cycle_texts(self) -> list[str]:
        """Return each cycle in words; if there is none, what that means."""
        if self.cycles:
            return [f"A cycle after update {self.step}: {self.cycle_text(cycle)}." for cycle in self.cycles]
        copies = {uid for uid in self.frozen if copy_of(uid)}
        if len(copies) > 1 and not any(copies >= {*pair} for pair in self.pairs):
            unknown = "Whether the frozen copies beat each other in a circle is not known: they never met"
            return [f"{unknown} (sparring tournament RUN@all plays them)."]
        return ["No cycle: the pairs whose interval is on one side of 50% are in an order."]

    def cycle_text(self, cycle: Sequence[str]) -> str:
        """Return who beats whom in a cycle, with scores."""
        return ", ".join(self._beats_text(*pair) for pair in pairwise((*cycle, cycle[0])))

    def _beats_text(self, uid: str, other: str) -> str:
        found = self.standing(uid, other)
        if found is None:
            return f"{uid} beats {other}"
        low, mid, high = (f"{100 * value:.0f}" for value in found.score)
        return f"{uid} beats {other} {mid}% ({low} to {high}, {counted(found.games, 'game')})"


class PopulationTail(LineTail):
    """Follows ``standings.jsonl``. Damaged lines are skipped.

    Args:
        path: the file, which need not exist yet.
        whole: keep the pairs of every moment; otherwise only the newest has them.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.whole = whole
        super().__init__(path)

    def moments(self) -> list[Population]:
        """Return the moments by step, the newest last."""
        newest = [] if self._newest is None else [self._newest]
        older = [one for one in self._kept if one is not self._newest]
        return [one if self.whole else replace(one, pairs={}) for one in older] + newest

    def _forget(self) -> None:
        self._standings: dict[tuple[str, str], Standing] = {}
        self._kept: list[Population] = []
        self._newest: Population | None = None
        self._lines = 0
        self._stride = 1

    def _take(self, line: bytes) -> None:
        found = decoded(line, StandingsLine)
        if found is None:
            return
        for uid, other, low, mid, high, games in found.pairs:
            self._standings[uid, other] = Standing(Interval(low, mid, high), games)
        members = {*found.policies, *found.frozen}
        pairs = {
            pair: one for pair, one in self._standings.items() if one.games > 0 and members.issuperset(pair)
        }
        self._newest = Population(
            policies=tuple(found.policies),
            frozen=tuple(found.frozen),
            pairs=pairs,
            ratings={uid: Interval(*rating) for uid, rating in found.ratings.items() if uid in members},
            cycles=tuple(tuple(cycle) for cycle in found.cycles if cycle),
            step=found.step,
        )
        if self._lines % self._stride == 0:
            self._kept.append(self._newest)
        self._lines += 1
        if len(self._kept) > MAX_MOMENTS:
            self._kept = self._kept[::2]
            self._stride *= 2
