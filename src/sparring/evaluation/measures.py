"""MeasureResult: one value for each item of a fixed set, and the mean of the values with its interval."""

from dataclasses import dataclass
from typing import Any

from sparring.core.confidence_intervals import Interval, mean_interval, wilson_interval


@dataclass(frozen=True)
class MeasureResult:
    """A measure of a program: a name and one value for each item.

    If all values are 0 or 1, it is a share with a Wilson interval, otherwise a mean with a normal interval.
    """

    name: str
    values: list[float]

    @property
    def is_share(self) -> bool:
        """Whether the values are successes (1) and failures (0)."""
        return all(value in (0.0, 1.0) for value in self.values)

    @property
    def interval(self) -> Interval:
        """The mean and its 95% interval."""
        if self.is_share:
            return wilson_interval(round(sum(self.values)), len(self.values))
        return mean_interval(len(self.values), sum(self.values), sum(value * value for value in self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file; mean and interval are included for readers of the file."""
        low, mid, high = self.interval
        return {
            "name": self.name,
            "count": len(self.values),
            "is_share": self.is_share,
            "mean": mid,
            "low": low,
            "high": high,
            "values": self.values,
        }
