"""Scores of many runs as one number with its interval: interquartile means, mean ranks, bootstraps.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021, arXiv
2108.13264, whose library is rliable. Scores of an entry are a list of runs for each game, which may differ in
length.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparring.core.confidence_intervals import Interval

FloatArray = NDArray[np.float64]
RESAMPLES = 2000
TRIMMED = 0.25
"""The share of scores that the interquartile mean leaves out at either end."""


def interquartile_mean(scores: FloatArray) -> float:
    """Return the mean of the middle half of all scores; a quarter that is no whole number is rounded down."""
    ordered = np.sort(scores, axis=None)
    cut = int(TRIMMED * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def interquartile_interval(games: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Return the interquartile mean over all runs of all games with its 95% bootstrap interval.

    The bootstrap is stratified: runs are drawn again within each game, never games.
    """
    generator = np.random.default_rng(seed)
    scores = [np.asarray(runs, dtype=np.float64) for runs in games]
    found = [interquartile_mean(np.concatenate(_drawn(scores, generator))) for _ in range(RESAMPLES)]
    return _interval(interquartile_mean(np.concatenate(scores)), np.array(found))


def mean_ranks(
    entries: Sequence[Sequence[Sequence[float]]], *, smaller_is_better: bool, seed: int = 0
) -> list[Interval]:
    """Return for each entry its rank by the mean score of a game, 1 the best, in the mean over games.

    Entries of equal means share the mean of their ranks. The interval is that of a stratified bootstrap. All
    entries have the same games.
    """
    generator = np.random.default_rng(seed)
    scores_EG = [[np.asarray(runs, dtype=np.float64) for runs in games] for games in entries]
    sign = 1.0 if smaller_is_better else -1.0

    def ranks(drawn_EG: Sequence[Sequence[FloatArray]]) -> FloatArray:
        mean_EG = sign * np.array([[runs.mean() for runs in games] for games in drawn_EG])
        before_EEG = mean_EG[None] < mean_EG[:, None]
        equal_EEG = mean_EG[None] == mean_EG[:, None]
        rank_EG = before_EEG.sum(axis=1) + (equal_EEG.sum(axis=1) + 1) / 2
        found: FloatArray = rank_EG.mean(axis=1)
        return found

    resampled_RE = np.array(
        [ranks([_drawn(games, generator) for games in scores_EG]) for _ in range(RESAMPLES)]
    )
    return [_interval(float(rank), resampled_RE[:, place]) for place, rank in enumerate(ranks(scores_EG))]


def _drawn(games: Sequence[FloatArray], generator: np.random.Generator) -> list[FloatArray]:
    """Return for each game as many of its runs as there are, drawn with replacement."""
    return [runs[generator.integers(len(runs), size=len(runs))] for runs in games]


def _interval(middle: float, resampled: FloatArray) -> Interval:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Interval(float(low), middle, float(high))
