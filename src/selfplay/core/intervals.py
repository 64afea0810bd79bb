"""Confidence intervals for shares and means."""

import math
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate (``mid``) and the bounds of its confidence interval."""

    low: float
    mid: float
    high: float


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Return the share of successes with its Wilson score interval.

    With p = successes / trials and z the normal quantile of (1 + confidence) / 2, the bounds are
    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Source: E. B. Wilson, "Probable inference, the
    law of succession, and statistical inference", JASA 22 (1927) 209-212. Without trials the result is
    (0, 0, 1).

    Raises:
        ValueError: there are more successes than trials, a number is negative, or the confidence is outside
            (0, 1).
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if trials == 0:
        return Interval(0.0, 0.0, 1.0)
    z = _quantile(confidence)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At 0 and at all successes one bound equals the share; rounding must not push it past.
    low = min(share, max(0.0, (centre - spread) / scale))
    high = max(share, min(1.0, (centre + spread) / scale))
    return Interval(low, share, high)


def mean_interval(count: int, total: float, squares: float, confidence: float = 0.95) -> Interval:
    """Return a mean with its normal interval, mean +- z s / sqrt(n), where s is the standard deviation.

    The sample is given by its size, its sum and the sum of its squares. A single value says nothing about the
    spread, so the bounds are then the value itself. Without values, all three numbers are 0.

    Raises:
        ValueError: the confidence is outside (0, 1).
    """
    if count == 0:
        return Interval(0.0, 0.0, 0.0)
    mean = total / count
    if count == 1:
        return Interval(mean, mean, mean)
    variance = max(0.0, (squares - total * mean) / (count - 1))
    spread = _quantile(confidence) * math.sqrt(variance / count)
    return Interval(mean - spread, mean, mean + spread)


def _quantile(confidence: float) -> float:
    """Return the number of standard deviations around the mean that cover ``confidence`` of a normal."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
