"""PopulationTail: reads the moments of a population from ``standings.jsonl``."""

from dataclasses import replace
from pathlib import Path

import msgspec

from selfplay.core.confidence_intervals import Interval
from selfplay.read.files import decoded
from selfplay.read.line_tail import LineTail
from selfplay.read.population import Population, Standing

MAX_MOMENTS = 24
"""At most this many moments are kept, spread over the run, and the newest."""


class _Line(msgspec.Struct):
    """A line of ``standings.jsonl``; see :class:`selfplay.training.standings_log.StandingsLog`."""

    step: int
    policies: list[str]
    frozen: list[str]
    pairs: list[tuple[str, str, float, float, float, int]]
    ratings: dict[str, tuple[float, float, float]]
    cycles: list[list[str]]


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
        found = decoded(line, _Line)
        if found is None:
            return
        for uid, other, low, mid, high, games in found.pairs:
            self._standings[uid, other] = Standing(Interval(low, mid, high), games)
        members = {*found.policies, *found.frozen}
        self._newest = Population(
            found.step,
            tuple(found.policies),
            tuple(found.frozen),
            {
                pair: one
                for pair, one in self._standings.items()
                if one.games > 0 and members.issuperset(pair)
            },
            {uid: Interval(*rating) for uid, rating in found.ratings.items() if uid in members},
            tuple(tuple(cycle) for cycle in found.cycles if cycle),
        )
        if self._lines % self._stride == 0:
            self._kept.append(self._newest)
        self._lines += 1
        if len(self._kept) > MAX_MOMENTS:
            self._kept = self._kept[::2]
            self._stride *= 2
