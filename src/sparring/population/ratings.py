"""TrueSkill ratings of games between any number of players."""

import trueskill

Rating = tuple[float, float]


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
        mu: float = trueskill.MU,
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
