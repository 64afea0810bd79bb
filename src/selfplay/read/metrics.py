"""MetricsTail: reads a growing metrics file in pieces and keeps as much as a screen or a page can show."""

from typing import Any

from selfplay.read.files import decoded
from selfplay.read.line_tail import LineTail
from selfplay.read.series import GrowingSeries, Series
from selfplay.read.warnings import FoundWarning, warnings_of

POOL = "model-pool/"
MAX_RATED = 16
"""The ratings of this many models are kept by step; of any others, only the latest."""


class MetricsTail(LineTail):
    """Follows ``metrics.jsonl``. Damaged lines are counted and skipped.

    Args:
        path: the file, which need not exist yet.

    Attributes:
        latest: the latest value of every metric.
        warnings: what was wrong so far, by cause.
        lines: the number of lines read, without damaged ones.
        damaged: the number of damaged lines.
    """

    def _forget(self) -> None:
        self.latest: dict[str, float] = {}
        self.warnings: dict[str, FoundWarning] = {}
        self.lines = 0
        self.damaged = 0
        self._series: dict[str, GrowingSeries] = {}
        self._rated: set[str] = set()

    def series(self) -> dict[str, Series]:
        """Return a copy of every series."""
        return {name: one.series() for name, one in self._series.items()}

    def _take(self, line: bytes) -> None:
        """Record one line."""
        metrics = decoded(line, dict[str, Any])
        step = metrics.get("step") if metrics is not None else None
        if metrics is None or not isinstance(step, int | float):
            self.damaged += bool(line.strip())
            return
        self.lines += 1
        for warning in warnings_of(metrics):
            before = self.warnings.get(warning.cause)
            self.warnings[warning.cause] = FoundWarning(warning, step, before.lines + 1 if before else 1)
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self.latest[name] = value
                series = self._series.get(name)
                if series is None and self._is_kept(name):
                    series = self._series[name] = GrowingSeries()
                if series is not None:
                    series.append(step, value)

    def _is_kept(self, name: str) -> bool:
        """Return whether a metric's series is kept: a long run rates more models than memory may hold."""
        if not name.startswith(POOL):
            return True
        uid = name.removeprefix(POOL).rpartition("/")[0]
        if len(self._rated) < MAX_RATED:
            self._rated.add(uid)
        return uid in self._rated
