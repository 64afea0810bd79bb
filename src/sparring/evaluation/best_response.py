"""What a trained best response gains over the policy that it answers, estimated from games."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from sparring.core import PlaySpec, Rollout, SparringError, derive_seed
from sparring.core.confidence_intervals import Interval, interval_of
from sparring.evaluation.match import CONCURRENCY, Agent, Play, SeatedGame, drawn, play_games
from sparring.evaluation.results import NashConvResult, failures_text
from sparring.evaluation.venues import Venue

MOST_WON = 3
"""Games of each seat that are kept to be read."""
LEAST_ROUNDS = 20
"""In fewer rounds, gains that happen to be alike would have an interval without width."""


@dataclass(frozen=True)
class SeatGain:
    """What a best response gains in one seat, in the game's own units, with 95% intervals.

    ``games`` were compared on the same deals: ``value`` is the policy's mean reward if it has every seat,
    ``best_response_value`` the best response's here, against the policy, and ``gain`` the mean difference.
    ``seat`` is its number, or the role of a program. ``invalid_own`` is the share of the games that the
    policy ended by an invalid move of its own in this seat, ``invalid_others`` the share that it so ended in
    another seat against the response, and ``invalid_response`` the response's own.
    """

    seat: str
    games: int
    value: Interval
    best_response_value: Interval
    gain: Interval
    invalid_own: float = 0.0
    invalid_others: float = 0.0
    invalid_response: float = 0.0

    @property
    def title(self) -> str:
        """The seat in words."""
        return f"seat {self.seat}" if self.seat.isdecimal() else self.seat


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
        planned_rounds: how many were to be played; fewer are if the calls to an API are used up.
    """

    seats: list[SeatGain]
    total: Interval
    rounds: int
    failures: Mapping[str, int]
    planned_rounds: int

    @property
    def found(self) -> bool:
        """Whether the sum of the gains is above 0 beyond its interval, which takes ``LEAST_ROUNDS``."""
        return self.total.low > 0 and self.rounds >= LEAST_ROUNDS


@dataclass(frozen=True, kw_only=True)
class Exploited(Gains):
    """What a trained response gains, and the budget that found it.

    Attributes:
        model: the policy as the user named it; who holds a ``role``, if that is not ``None``.
        updates: updates of the best response, of at most ``max_updates``; ``None`` for one in a table.
        positions: those that a table knows; ``None`` for a model.
        settled: whether its evaluations no longer found a better policy, which ends the training.
        training_games: games that it was trained on.
        minutes: time that its training took, evaluations included.
        exact: the exact measure, where it can be computed.
        calls: calls to models behind an API, of at most ``max_calls``; ``None`` without such a model.
    """

    env_id: str
    model: str
    role: str | None = None
    updates: int | None = None
    max_updates: int | None = None
    positions: int | None = None
    settled: bool
    training_games: int
    minutes: float
    exact: NashConvResult | None
    calls: int | None = None
    max_calls: int | None = None

    @property
    def exact_gains(self) -> list[float] | None:
        """What a best response gains in each seat exactly, with invalid moves as in games if that is known;
        ``None`` where there is no exact measure."""
        return None if self.exact is None else self.exact.played_gains or self.exact.exploitability

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; intervals are [low, mid, high]."""
        exact = None if self.exact is None else self.exact.to_dict()
        return {"kind": "best_response_gain", **asdict(self), "found": self.found, "exact": exact}


@dataclass(frozen=True)
class Won:
    """A game of the response in a seat, what it earned there, and the game's number.

    ``rollouts`` are the game, whose ``meta["response"]`` is the seat, and the episodes that it started.
    """

    reward: float
    index: int
    seat: str
    rollouts: list[Rollout]


_ENDED = "the game was ended"


@dataclass(frozen=True)
class _Game:
    """What the seats earned in a game, and the seat whose invalid move ended it."""

    rewards: Sequence[float]
    invalid_seat: int | None


async def measure_gains(
    play: Play,
    venue: Venue,
    policy: Sequence[Agent],
    response: Sequence[Agent],
    games: int,
    seed: int,
    on_game: Callable[[int, int], None],
    *,
    concurrency: int = CONCURRENCY,
    ends: type[Exception] | tuple[()] = (),
) -> tuple[Gains, list[Won]]:
    """Play a response in each seat against a policy in all others, and the policy against itself.

    ``games`` of the response, rounded up to rounds that have the same deal in every seat, as in
    ``play_match``; and one of the policy with each of these deals. If a game raises what ``ends`` it, only
    the rounds before the first such game count, whatever the lengths of games.

    Returns:
        The gains, and the games in which the response earned most, ``MOST_WON`` in each seat.

    Raises:
        SparringError: no round could be finished.
    """
    num_seats = len(venue.seats)
    named = _games(venue, policy, response, games, seed)
    places = {rollout_id: index for index, (rollout_id, _) in enumerate(named)}
    ended = len(named)

    async def play_or_end(rollout_id: str, spec: PlaySpec) -> SeatedGame | str:
        nonlocal ended
        if places[rollout_id] > ended:
            return _ENDED
        try:
            return await play(rollout_id, spec)
        except ends:
            ended = min(ended, places[rollout_id])
            return _ENDED

    played, won = dict[int, _Game | str](), dict[str, list[Won]]()
    most = MOST_WON + (concurrency if ends else 0)  # so many may be after the one that ends it

    def record(index: int, game: SeatedGame | str) -> None:
        place = index % (num_seats + 1)
        played[index] = game if isinstance(game, str) else _Game(game.rewards, game.invalid_seat)
        if place and not isinstance(game, str):
            seat = venue.seats[place - 1]
            kept = won.setdefault(seat, [])
            kept.append(Won(game.rewards[place - 1], index, seat, _rollouts_of(game, seat)))
            kept.sort(key=lambda one: (-one.reward, one.index))
            del kept[most:]
        on_game(len(played), len(named))

    await play_games(play_or_end, named, record, concurrency)
    counted = ended - ended % (num_seats + 1)
    played = {index: game for index, game in played.items() if index < counted}
    own, best, failures = dict[int, _Game](), dict[int, _Game](), Counter[str]()
    for index, one in sorted(played.items()):
        round_, place = divmod(index, num_seats + 1)
        if isinstance(one, str):
            failures[one] += 1
        elif place == 0:
            own |= dict.fromkeys(range(round_ * num_seats, (round_ + 1) * num_seats), one)
        else:
            best[round_ * num_seats + place - 1] = one
    found = gains_of(
        venue.seats,
        {game: one.rewards[game % num_seats] for game, one in own.items()},
        {game: one.rewards[game % num_seats] for game, one in best.items()},
        failures,
        planned_rounds=len(named) // (num_seats + 1),
    )
    if not found.rounds:
        problem = "no round of games could be finished, so nothing is measured"
        why = failures_text(failures) if failures else "the calls are used up"
        raise SparringError(f"{problem}: {why}")
    seats = [_with_invalid(one, seat, own, best, num_seats) for seat, one in enumerate(found.seats)]
    read = ([one for one in won.get(name, []) if one.index < counted][:MOST_WON] for name in venue.seats)
    return replace(found, seats=seats), [*chain.from_iterable(read)]


def _rollouts_of(game: SeatedGame, response: str) -> list[Rollout]:
    game.rollout.meta["response"] = response
    return [game.rollout, *(one for child in game.children for one in child.all_rollouts())]


def _games(
    venue: Venue, policy: Sequence[Agent], response: Sequence[Agent], games: int, seed: int
) -> list[tuple[str, PlaySpec]]:
    """Return the games of all rounds, with the ids of their rollouts.

    Of each deal there is one in which the policy has every seat, and one for each seat of the response.
    """
    num_seats, named = len(venue.seats), list[tuple[str, PlaySpec]]()
    for round_ in range(-(-games // num_seats)):
        deal = derive_seed(seed, "match", round_)
        theirs = tuple(drawn(one, deal, seat) for seat, one in enumerate(policy))
        mine = [drawn(one, deal, seat) for seat, one in enumerate(response)]
        seatings = [theirs] + [(*theirs[:seat], mine[seat], *theirs[seat + 1 :]) for seat in range(num_seats)]
        for place, agents in enumerate(seatings):
            spec = PlaySpec(venue.name, num_seats, agents, deal)
            named.append((f"gain-{round_:05d}-{place}", spec))
    return named


def _with_invalid(
    gain: SeatGain, seat: int, own: Mapping[int, _Game], best: Mapping[int, _Game], num_seats: int
) -> SeatGain:
    """Return the gain with the shares of games that invalid moves ended."""
    games = [game for game in sorted(own.keys() & best.keys()) if game % num_seats == seat]
    ended = [(own[game].invalid_seat, best[game].invalid_seat) for game in games]

    def share(found: Sequence[bool]) -> float:
        return sum(found) / max(len(found), 1)

    return replace(
        gain,
        invalid_own=share([one == seat for one, _ in ended]),
        invalid_others=share([two not in (None, seat) for _, two in ended]),
        invalid_response=share([two == seat for _, two in ended]),
    )


def gains_of(
    names: Sequence[str],
    own: Mapping[int, float],
    best: Mapping[int, float],
    failures: Mapping[str, int] | None = None,
    planned_rounds: int | None = None,
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
                interval_of([own[game] for game in games]),
                interval_of([best[game] for game in games]),
                interval_of([best[game] - own[game] for game in games]),
            )
        )
    rounds: dict[int, list[float]] = {}
    for game in both:
        rounds.setdefault(game // num_players, []).append(best[game] - own[game])
    complete = [sum(gains) for gains in rounds.values() if len(gains) == num_players]
    return Gains(
        seats=seats,
        total=interval_of(complete),
        rounds=len(complete),
        failures=dict(failures or {}),
        planned_rounds=len(complete) if planned_rounds is None else planned_rounds,
    )
