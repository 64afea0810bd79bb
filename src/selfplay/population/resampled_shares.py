"""Shares of members in a meta-strategy, and how far they move if the payoffs are drawn again."""

from typing import NamedTuple

import numpy as np

from selfplay.core.play import MetaStrategy
from selfplay.population.meta_strategies import meta_strategy
from selfplay.population.payoffs import PayoffMatrix

RESAMPLES = 60
"""The number of matrices that are drawn."""


class ResampledShare(NamedTuple):
    """A member's share in the solution of the payoffs, and its resampled range from ``low`` to ``high``.

    The range contains the share itself, and the shares in the solutions of 95% of :data:`RESAMPLES` matrices,
    drawn around the payoffs with their standard errors. It is **not** a confidence interval: solutions jump
    where two members are nearly equal, and a bootstrap of a discontinuous function has no known coverage.
    """

    share: float
    low: float
    high: float


def resampled_shares(name: MetaStrategy, matrix: PayoffMatrix) -> list[ResampledShare] | None:
    """Return each member's share in a meta-strategy with its resampled range.

    It is ``None`` if a pair did not meet.
    """
    if not np.isfinite(matrix.mean_MM).all():
        return None
    shares_M = meta_strategy(name, matrix.mean_MM)
    draw = np.random.default_rng(0)
    error_MM = matrix.advantage_error_MM
    drawn_DM = []
    for _ in range(RESAMPLES):
        noise_MM = np.triu(draw.normal(size=error_MM.shape) * error_MM, 1)
        drawn_DM.append(meta_strategy(name, matrix.advantage_MM + noise_MM - noise_MM.T))
    low_M, high_M = np.quantile(drawn_DM, (0.025, 0.975), axis=0)
    return [
        ResampledShare(float(share), float(min(low, share)), float(max(share, high)))
        for low, share, high in zip(low_M, shares_M, high_M, strict=True)
    ]
