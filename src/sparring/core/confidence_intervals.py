"""Confidence intervals for shares and means."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""The number of standard deviations around the mean that cover 95% of a normal distribution."""


class Interval(NamedTuple):
    """An estimate (``mid``) and the bounds of its confidence interval."""

    low: float
    mid: float
    high: float


def wilson_interval(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Return the share of successes with its Wilson score interval; (0, 0, 1) without trials.

    With p = successes / trials and z the normal quantile of (1 + confidence) / 2, the bounds are (p + z^2/2n
    +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) (E. B. Wilson, JASA 22 (1927) 209-212). Draws may count as
    half a success; the interval is then wider than it has to be.
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

    ``squares`` is the sum of the squares. The bounds of a single value, which says nothing of the spread, are
    the value itself, as those of equal ones; without values, all three numbers are 0.
    """
    if count == 0:
        return Interval(0.0, 0.0, 0.0)
    mean = total / count
    if count == 1:
        return Interval(mean, mean, mean)
    variance = max(0.0, (squares - total * mean) / (count - 1))
    spread = _quantile(confidence) * math.sqrt(variance / count)
    return Interval(mean - spread, mean, mean + spread)


def normal_interval(mean: float, error: float) -> Interval:
    """Return a mean whose standard error is known, with its normal interval of 95%."""
    spread = NORMAL_95 * error
    return Interval(mean - spread, mean, mean + spread)


def interval_of(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean of values with its normal interval; see :func:`mean_interval`."""
    return mean_interval(len(values), sum(values), sum(value * value for value in values), confidence)


def paired_interval(gained: int, lost: int, count: int, confidence: float = 0.95) -> Interval:
    """Return the change of a share of successes among the same ``count`` things, with its interval.

    ``gained`` are successes only after, ``lost`` only before. With one more of each among two more things,
    and g and l their shares of the n + 2, the bounds are g - l +- z sqrt((g + l - (g - l)^2) / (n + 2)).
    They have a width also where nothing has changed (D. G. Bonett and R. M. Price, J. Educ. Behav. Stat. 37
    (2012) 479-488). (-1, 0, 1) without things.
    """
    if count == 0:
        return Interval(-1.0, 0.0, 1.0)
    share, total = (gained - lost) / count, count + 2
    difference, changed = (gained - lost) / total, (gained + lost + 2) / total
    spread = _quantile(confidence) * math.sqrt((changed - difference * difference) / total)
    low, high = max(-1.0, difference - spread), min(1.0, difference + spread)
    return Interval(min(share, low), share, max(share, high))


def interval_over_runs(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean of one value per run with Student's interval, mean +- t s / sqrt(n).

    s is the standard deviation between runs and t the quantile of Student's distribution with n - 1 degrees
    of freedom: 12.7 for two runs, 4.3 for three. Fewer than two raise a ValueError.
    """
    runs = len(values)
    if runs < 2:
        raise ValueError(f"{runs} runs say nothing about the spread between runs")
    mean = fmean(values)
    spread = _student_quantile(runs - 1, confidence) * stdev(values) / math.sqrt(runs)
    return Interval(mean - spread, mean, mean + spread)


@lru_cache
def _student_quantile(degrees: int, confidence: float) -> float:
    """Return t for which a Student variable lies within -t and t with probability ``confidence``."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_share(degrees, middle) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _student_share(degrees: int, angle: float) -> float:
    """Return the probability that a Student variable lies within -t and t, for t = sqrt(degrees) tan(angle)
    (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4)."""
    odd = degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for number in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * number / (number + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
