"""What a trained best response gains over the policy that it answers, estimated from games."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparring.core.confidence_intervals import NORMAL_95, Interval, mean_interval
from sparring.evaluation.results import NashConvResult
from sparring.population.payoffs import PayoffMatrix

LEAST_ROUNDS = 20
"""In fewer rounds, gains that happen to be alike would have an interval without width."""


@dataclass(frozen=True)
class SeatGain:
    """What a best response gains in one seat, in the game's own units, with 95% intervals.

    ``games`` were compared on the same deals: ``value`` is the policy's mean reward if it has every seat,
    ``best_response_value`` the best response's here, against the policy, and ``gain`` the mean difference.
    """

    games: int
    value: Interval
    best_response_value: Interval
    gain: Interval


@dataclass(frozen=True, kw_only=True)
class Exploited:
    """What one trained response gains over a policy, estimated from games, and the budget that found it.

    A trained best response is at most as good as a perfect one, so the expectation of its gain is at most the
    exploitability of the seat, and that of ``total``, the sum over seats, at most NashConv. The estimate may
    be above them by chance.

    Attributes:
        model: the policy as the user named it.
        total: the sum of the gains, whose interval respects that the seats of a round share a deal.
        rounds: how many that sum is the mean of.
        updates: updates of the best response, of at most ``max_updates``.
        settled: whether its evaluations no longer found a better policy, which ends the training.
        training_games: games that it was trained on.
        minutes: time that its training took, evaluations included.
        failures: games that measure it and could not be finished, by reason; nothing else counts them.
        exact: the exact measure, where it can be computed.
    """

    env_id: str
    model: str
    seats: list[SeatGain]
    total: Interval
    rounds: int
    updates: int
    max_updates: int
    settled: bool
    training_games: int
    minutes: float
    failures: Mapping[str, int]
    exact: NashConvResult | None

    @property
    def found(self) -> bool:
        """Whether the sum of the gains is above 0 beyond its interval, which takes ``LEAST_ROUNDS``."""
        return self.total.low > 0 and self.rounds >= LEAST_ROUNDS

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; intervals are [low, mid, high]."""
        exact = None if self.exact is None else self.exact.to_dict()
        return {"kind": "best_response_gain", **asdict(self), "found": self.found, "exact": exact}


def gains_of(
    num_players: int, own: Mapping[int, float], best: Mapping[int, float]
) -> tuple[list[SeatGain], Interval, int]:
    """Compare two matches game by game: ``own``, where the policy has every seat, and the best response's.

    Returns the gain in each seat, the sum of the gains, and the number of rounds that it is the mean of.

    Rewards are by number of the game. Game i is about seat i % num_players, and the games of one round (equal
    i // num_players) have the same deal, as in ``play_match``. Only games that are finished in both matches
    count, and in the sum only rounds whose games all are.
    """
    both = sorted(own.keys() & best.keys())
    seats = []
    for seat in range(num_players):
        games = [game for game in both if game % num_players == seat]
        seats.append(
            SeatGain(
                len(games),
                _mean([own[game] for game in games]),
                _mean([best[game] for game in games]),
                _mean([best[game] - own[game] for game in games]),
            )
        )
    rounds: dict[int, list[float]] = {}
    for game in both:
        rounds.setdefault(game // num_players, []).append(best[game] - own[game])
    complete = [sum(gains) for gains in rounds.values() if len(gains) == num_players]
    return seats, _mean(complete), len(complete)


def gain_over_mixture(matrix: PayoffMatrix, uid: str, mixture: Mapping[str, float]) -> Interval:
    """Return what a member gains against a mixture of others over the mixture itself, over both seats.

    In a zero-sum game a mixture earns 0 against itself, on average over seats. So the gain is twice the mean
    of the member's advantage over each other member, weighted by the mixture, and at most the mixture's
    NashConv. The 95% interval is that of the games, which are independent of the mixture.
    """
    place = {name: row for row, name in enumerate(matrix.members)}
    row = place[uid]
    mean = variance = 0.0
    for name, weight in mixture.items():
        column = place[name]
        error = matrix.advantage_error_MM[row, column]
        mean += 2 * weight * float(matrix.advantage_MM[row, column])
        variance += (2 * weight * float(error)) ** 2
    spread = NORMAL_95 * math.sqrt(variance)
    return Interval(mean - spread, mean, mean + spread)


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(len(values), sum(values), sum(value * value for value in values))
