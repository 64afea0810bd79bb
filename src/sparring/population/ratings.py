"""Ratings: TrueSkill game by game, and Bradley-Terry ratings of games for two with confidence intervals."""

import math
from dataclasses import dataclass

import numpy as np
import trueskill
from numpy.typing import NDArray

from sparring.core.confidence_intervals import NORMAL_95, Interval
from sparring.population.payoffs import PayoffTable

Rating = tuple[float, float]

PRIOR_MU: float = trueskill.MU
"""Mean of the rating of a model that has not played."""


class TrueSkillRatings:
    """Rates games by TrueSkill (Herbrich et al., 2006), with ratings as plain (mu, sigma) tuples.

    Args:
        mu: mean of a new rating.
        sigma: standard deviation of a new rating.
        beta: standard deviation of performance in one game around skill; 4.0 is UnstableBaselines' value.
        tau: growth of sigma between games, so that ratings never freeze.
        draw_probability: expected share of draws between equal players.
    """

    def __init__(
        self,
        mu: float = PRIOR_MU,
        sigma: float = trueskill.SIGMA,
        beta: float = 4.0,
        tau: float = trueskill.TAU,
        draw_probability: float = trueskill.DRAW_PROBABILITY,
    ) -> None:
        self.default: Rating = (float(mu), float(sigma))
        self._env = trueskill.TrueSkill(
            mu=mu, sigma=sigma, beta=beta, tau=tau, draw_probability=draw_probability
        )

    def rate(self, ratings: list[Rating], rewards: list[float]) -> list[Rating]:
        """Return the players' ratings after one game, in the same order.

        The higher reward wins, equal rewards draw. If the ratings make a result so improbable that its
        probability underflows, all ratings stay unchanged, because TrueSkill has no finite update for it; for
        the expected result of such a match, the update is 0 anyway.

        Args:
            ratings: one for each player, two or more.
            rewards: one for each player.
        """
        groups = [(self._env.create_rating(mu, sigma),) for mu, sigma in ratings]
        try:
            rated = self._env.rate(groups, ranks=ranks_of(rewards))
        except (ArithmeticError, ValueError):
            # TrueSkill raises FloatingPointError on purpose, and "math domain error" after an underflow.
            return list(ratings)
        return [(float(group[0].mu), float(group[0].sigma)) for group in rated]

    def quality(self, first: Rating, second: Rating) -> float:
        """Return the match quality of two players, 0 to 1: the chance of a draw relative to equal players."""
        return float(
            self._env.quality([(self._env.create_rating(*first),), (self._env.create_rating(*second),)])
        )

    def inherited(self, rating: Rating) -> Rating:
        """Return the initial rating of a new checkpoint: its predecessor's mean and twice its deviation.

        The deviation is capped at that of an unknown model; without the cap it would double with every
        checkpoint that plays few games.
        """
        mu, sigma = rating
        return (mu, min(2 * sigma, self.default[1]))


def ranks_of(rewards: list[float]) -> list[int]:
    """Return each player's rank, 0 for the best; equal rewards share a rank."""
    best_first = sorted(set(rewards), reverse=True)
    return [best_first.index(reward) for reward in rewards]


SCALE, BASE, CENTRE = 400.0, 10.0, 1000.0
"""A member rated ``SCALE`` points higher scores ``BASE`` times as often; the mean rating is ``CENTRE``."""

_RIDGE_PER_GAME = 1e-5
_MAX_STEPS = 200


@dataclass(frozen=True)
class Results:
    """What M members scored against each other.

    ``wins_MM``: games that the row won against the column. ``draws_MM``: drawn games, symmetric.
    """

    wins_MM: NDArray[np.float64]
    draws_MM: NDArray[np.float64]

    @classmethod
    def of(cls, table: PayoffTable, members: list[str]) -> "Results":
        """Return the results of ``members`` in a game for two; games against oneself are left out."""
        size = len(members)
        wins_MM, draws_MM = np.zeros((size, size)), np.zeros((size, size))
        for row, uid in enumerate(members):
            for column, other in enumerate(members):
                if row != column:
                    first, second = table.payoff(uid, other), table.payoff(other, uid)
                    wins_MM[row, column] = first.wins[0] + second.wins[1]
                    draws_MM[row, column] = first.draws + second.draws
        return cls(wins_MM, draws_MM)

    def have_ratings(self) -> bool:
        """Whether finite ratings are most likely: no group of members scored everything against the rest.

        That holds if every member reaches every other along pairs in which the first did not lose all games.
        """
        size = len(self.wins_MM)
        scored_MM = (self.wins_MM + self.draws_MM > 0) | np.eye(size, dtype=bool)
        for _ in range(max(1, size).bit_length()):
            scored_MM = scored_MM @ scored_MM
        return bool(scored_MM.all())

    def with_a_draw_for_each_pair(self) -> "Results":
        """Return these results and one more drawn game of every pair that met."""
        met_MM = self.wins_MM + self.wins_MM.T + self.draws_MM > 0
        return Results(self.wins_MM, self.draws_MM + met_MM)


def bradley_terry(results: Results) -> list[Interval]:
    """Return each member's most likely rating with its 95% interval; a draw is half a win.

    With differences d of ratings in units of SCALE / ln(BASE), the row wins with probability
    p = 1 / (1 + exp(-d)). The intervals are those of the sandwich estimator, H^-1 G H^-1: H is the Hessian of
    the likelihood, with 1e-5 for each game on its diagonal because it is singular, and G the sum over games
    of the gradient times itself. They hold for the differences to the mean rating. The same as
    ``BradleyTerry.compute_ratings_and_cis`` of the package arena-rank, which iterates until the likelihood
    changes by less than 1e-9; these ratings are exact.

    Where the most likely ratings are not finite, because some members scored everything against others, each
    pair that met gets one more game, drawn. Members that no games connect are rated within their groups.
    """
    if not results.have_ratings():
        results = results.with_a_draw_for_each_pair()
    games_MM = results.wins_MM + results.wins_MM.T + results.draws_MM
    score_MM = results.wins_MM + results.draws_MM / 2
    ratings_M = _most_likely(score_MM, games_MM)
    p_MM = _chances(ratings_M)
    hessian_MM = _laplacian(games_MM * p_MM * (1 - p_MM))
    hessian_MM += np.eye(len(ratings_M)) * _RIDGE_PER_GAME * games_MM.sum() / 2
    # A win's gradient is 1 - p, a loss's -p, a draw's 1/2 - p; its square is the same for both players.
    squares_MM = (
        results.wins_MM * (1 - p_MM) ** 2 + results.wins_MM.T * p_MM**2 + results.draws_MM * (0.5 - p_MM) ** 2
    )
    inverse_MM = np.linalg.pinv(hessian_MM)
    variances_M = np.diag(inverse_MM @ _laplacian(squares_MM) @ inverse_MM)
    unit = SCALE / math.log(BASE)
    spread_M = NORMAL_95 * np.sqrt(np.maximum(variances_M, 0.0)) * unit
    mids = CENTRE + ratings_M * unit
    return [
        Interval(float(mid - spread), float(mid), float(mid + spread))
        for mid, spread in zip(mids, spread_M, strict=True)
    ]


def ratings_of_shares(share_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Bradley-Terry ratings of members of whom the row scores this share against the column.

    All pairs weigh the same. The first member has the rating ``CENTRE``.
    """
    others_MM = 1 - np.eye(len(share_MM))
    ratings_M = _most_likely(share_MM * others_MM, others_MM)
    ratings_M = CENTRE + (ratings_M - ratings_M[0]) * SCALE / math.log(BASE)
    return np.asarray(ratings_M, dtype=np.float64)


def anchored_rating(
    share_N: NDArray[np.float64], error_N: NDArray[np.float64], ratings_N: NDArray[np.float64]
) -> Interval:
    """Return the rating of a member that scored these shares against N members with fixed ratings.

    It is the most likely one in the model of :func:`bradley_terry`, after equally many games against each:
    the expected shares have the same sum as ``share_N``. The 95% interval has the standard error of that sum,
    divided by its slope. If every share is 0, or every one is 1, no finite rating is most likely; 1% of the
    way to 1/2 is then gone.

    ``error_N`` are the shares' standard errors.
    """
    unit = SCALE / math.log(BASE)
    if share_N.min() == share_N.max() and share_N[0] in (0, 1):
        share_N = 0.99 * share_N + 0.005
    fixed_N = (ratings_N - CENTRE) / unit
    low, high = fixed_N.min() - 50.0, fixed_N.max() + 50.0
    while low < (middle := (low + high) / 2) < high:
        p_N = 1 / (1 + np.exp(fixed_N - middle))
        low, high = (middle, high) if p_N.sum() < share_N.sum() else (low, middle)
    spread = NORMAL_95 * float(np.sqrt((error_N**2).sum()) / (p_N * (1 - p_N)).sum()) * unit
    rating = float(CENTRE + low * unit)
    return Interval(rating - spread, rating, rating + spread)


def _most_likely(score_MM: NDArray[np.float64], games_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratings that maximise the likelihood, by Newton's method; their mean is 0."""
    ratings_M = np.zeros(len(score_MM))
    loss = _loss(ratings_M, score_MM)
    for _ in range(_MAX_STEPS):
        p_MM = _chances(ratings_M)
        gradient_M = (score_MM - games_MM * p_MM).sum(axis=1)
        # The pseudo-inverse leaves the mean of the ratings of a connected group where it is.
        step_M = np.linalg.pinv(_laplacian(games_MM * p_MM * (1 - p_MM))) @ gradient_M
        if np.abs(step_M).max(initial=0.0) < 1e-10:
            break
        size = 1.0
        while (new := _loss(ratings_M + size * step_M, score_MM)) > loss and size > 1e-6:
            size /= 2
        ratings_M, loss = ratings_M + size * step_M, new
    return ratings_M


def _loss(ratings_M: NDArray[np.float64], score_MM: NDArray[np.float64]) -> float:
    difference_MM = ratings_M[:, None] - ratings_M[None, :]
    return float((score_MM * np.logaddexp(0.0, -difference_MM)).sum())


def _chances(ratings_M: NDArray[np.float64]) -> NDArray[np.float64]:
    difference_MM = ratings_M[:, None] - ratings_M[None, :]
    chances_MM: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -difference_MM))
    return chances_MM


def _laplacian(weights_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return minus the weights, which are symmetric, with the sums of the rows on the diagonal."""
    laplacian_MM: NDArray[np.float64] = np.diag(weights_MM.sum(axis=1)) - weights_MM
    return laplacian_MM
