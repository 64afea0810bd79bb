"""StandingsLog: who of the pool beats whom after each update, as lines of ``standings.jsonl``."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sparring.collection.sinks import JsonlSink
from sparring.core.confidence_intervals import Interval
from sparring.population.standings import Standing, Standings, StandingsLine

SCORE_DIGITS, RATING_DIGITS = 4, 1
_Figures = tuple[float, float, float, int]


class StandingsLog:
    """Appends a :class:`StandingsLine` after each update. Of the pairs, it has those that changed.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: JsonlSink | None = None
        self._step = -1
        self._known: dict[tuple[str, str], _Figures] = {}

    def continue_after(self, step: int) -> None:
        """Open the file and delete the lines of later updates; damaged lines before them stay.

        Raises:
            InputError: the file cannot be opened for writing.
        """
        self._lines = JsonlSink(self.path)
        end, self._step, self._known = 0, -1, {}
        for line, after in _lines_of(self.path):
            if line is not None and line.step <= step:
                end, self._step = after, line.step
                self._known |= {
                    (uid, other): (low, mid, high, games) for uid, other, low, mid, high, games in line.pairs
                }
        self._lines.truncate(end)

    def write(self, step: int, found: Standings) -> None:
        """Write the line of an update, with the standings after it. One that has its line gets no second one.

        Raises:
            OSError: the line cannot be written.
        """
        assert self._lines is not None, "continue_after comes first"
        if step <= self._step:
            return
        pairs = {pair: _figures(one) for pair, one in found.pairs.items()}
        members = {*found.policies, *found.frozen}
        gone = {
            pair: (0.0, 0.0, 0.0, 0)
            for pair, figures in self._known.items()
            if pair not in pairs and members.issuperset(pair) and figures[-1]
        }
        new = {pair: one for pair, one in (pairs | gone).items() if self._known.get(pair) != one}
        line = StandingsLine(
            step,
            list(found.policies),
            list(found.frozen),
            [(*pair, *figures) for pair, figures in new.items()],
            {uid: _rounded(one, RATING_DIGITS) for uid, one in found.ratings.items()},
            [list(cycle) for cycle in found.cycles],
        )
        self._lines.write(msgspec.to_builtins(line))
        self._step = step
        self._known |= new

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()


def _lines_of(path: Path) -> Iterator[tuple[StandingsLine | None, int]]:
    """Yield every line, ``None`` for a damaged one, and the offset after it."""
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            yield msgspec.json.decode(line, type=StandingsLine), end
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield None, end


def _figures(one: Standing) -> _Figures:
    return *_rounded(one.score, SCORE_DIGITS), one.games


def _rounded(interval: Interval, digits: int) -> tuple[float, float, float]:
    low, mid, high = interval
    return round(low, digits), round(mid, digits), round(high, digits)
