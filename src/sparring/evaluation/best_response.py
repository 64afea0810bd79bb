"""What a trained best response gains over the policy that it answers, estimated from games."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparring.core import PlaySpec, SparringError, derive_seed
from sparring.core.confidence_intervals import Interval, mean_interval
from sparring.evaluation.match import Agent, Play, SeatedGame, drawn, play_games
from sparring.evaluation.results import NashConvResult, failures_text
from sparring.evaluation.venues import Venue

LEAST_ROUNDS = 20
"""In fewer rounds, gains that happen to be alike would have an interval without width."""


@dataclass(frozen=True)
class SeatGain:
    """What a best response gains in one seat, in the game's own units, with 95% intervals.

    ``games`` were compared on the same deals: ``value`` is the policy's mean reward if it has every seat,
    ``best_response_value`` the best response's here, against the policy, and ``gain`` the mean difference.
    ``seat`` is its number, or the role of a program.
    """

    seat: str
    games: int
    value: Interval
    best_response_value: Interval
    gain: Interval


@dataclass(frozen=True, kw_only=True)
class Gains:
    """What one response gains over a policy, estimated from games.

    A trained best response is at most as good as a perfect one, so the expectation of its gain is at most the
    exploitability of the seat, and that of ``total``, the sum over seats, at most NashConv. The estimate may
    be above them by chance.

    Attributes:
        total: the sum of the gains, whose interval respects that the seats of a round share a deal.
        rounds: how many that sum is the mean of.
        failures: games that could not be finished, by reason; nothing else counts them.
    """

    seats: list[SeatGain]
    total: Interval
    rounds: int
    failures: Mapping[str, int]

    @property
    def found(self) -> bool:
        """Whether the sum of the gains is above 0 beyond its interval, which takes ``LEAST_ROUNDS``."""
        return self.total.low > 0 and self.rounds >= LEAST_ROUNDS


@dataclass(frozen=True, kw_only=True)
class Exploited(Gains):
    """What a trained response gains, and the budget that found it.

    Attributes:
        model: the policy as the user named it.
        updates: updates of the best response, of at most ``max_updates``.
        settled: whether its evaluations no longer found a better policy, which ends the training.
        training_games: games that it was trained on.
        minutes: time that its training took, evaluations included.
        exact: the exact measure, where it can be computed.
    """

    env_id: str
    model: str
    updates: int
    max_updates: int
    settled: bool
    training_games: int
    minutes: float
    exact: NashConvResult | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; intervals are [low, mid, high]."""
        exact = None if self.exact is None else self.exact.to_dict()
        return {"kind": "best_response_gain", **asdict(self), "found": self.found, "exact": exact}


async def measure_gains(
    play: Play,
    venue: Venue,
    policy: Sequence[Agent],
    response: Sequence[Agent],
    games: int,
    seed: int,
    on_game: Callable[[int, int], None],
) -> Gains:
    """Play a response in each seat against a policy in all others, and the policy against itself.

    ``games`` of the response, rounded up to rounds that have the same deal in every seat, as in
    ``play_match``; and one of the policy with each of these deals.

    Raises:
        SparringError: no round could be finished.
    """
    num_seats = len(venue.seats)
    named: list[tuple[str, PlaySpec]] = []
    for round_ in range(-(-games // num_seats)):
        deal = derive_seed(seed, "match", round_)
        theirs = tuple(drawn(one, deal, seat) for seat, one in enumerate(policy))
        mine = [drawn(one, deal, seat) for seat, one in enumerate(response)]
        seatings = [theirs] + [(*theirs[:seat], mine[seat], *theirs[seat + 1 :]) for seat in range(num_seats)]
        for place, agents in enumerate(seatings):
            spec = PlaySpec(venue.name, num_seats, agents, deal)
            named.append((f"gain-{round_:05d}-{place}", spec))
    own, best, failures, done = dict[int, float](), dict[int, float](), Counter[str](), 0

    def record(index: int, played: SeatedGame | str) -> None:
        nonlocal done
        round_, place = divmod(index, num_seats + 1)
        first = round_ * num_seats
        if isinstance(played, str):
            failures[played] += 1
        elif place == 0:
            own.update(enumerate(played.rewards, start=first))
        else:
            best[first + place - 1] = played.rewards[place - 1]
        done += 1
        on_game(done, len(named))

    await play_games(play, named, record)
    found = gains_of(venue.seats, own, best, failures)
    if not found.rounds:
        problem = "no round of games could be finished, so nothing is measured"
        raise SparringError(f"{problem}: {failures_text(failures)}")
    return found


def gains_of(
    names: Sequence[str],
    own: Mapping[int, float],
    best: Mapping[int, float],
    failures: Mapping[str, int] | None = None,
) -> Gains:
    """Compare rewards game by game: ``own``, where the policy has every seat, and the best response's.

    Rewards are by number of the game. Of n seats with these names, game i is about seat i % n, and the games
    of one round (equal i // n) have the same deal. Only games that are finished in both count, and in the sum
    only rounds whose games all are.
    """
    num_players = len(names)
    both = sorted(own.keys() & best.keys())
    seats = []
    for seat, name in enumerate(names):
        games = [game for game in both if game % num_players == seat]
        seats.append(
            SeatGain(
                name,
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
    return Gains(seats=seats, total=_mean(complete), rounds=len(complete), failures=dict(failures or {}))


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(len(values), sum(values), sum(value * value for value in values))
