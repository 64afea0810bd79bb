"""What a trained best response gains over the policy that it answers, estimated from games."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from selfplay.core.confidence_intervals import Interval, mean_interval
from selfplay.core.text import one_line
from selfplay.evaluation.match_result import failures_text
from selfplay.evaluation.nash_conv import NashConvResult

LEAST_ROUNDS = 20
"""In fewer rounds, gains that happen to be alike would have an interval without width."""


@dataclass(frozen=True)
class SeatGain:
    """What a best response gains in one seat, in the game's own units. All intervals are 95% intervals.

    Attributes:
        games: games of each kind that were compared.
        value: mean reward of the policy in this seat if it has every seat.
        best_response_value: mean reward of the best response here, against the policy in all other seats.
        gain: the mean difference between the two on the same deals.
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
        env_id: the game.
        model: the policy as the user named it.
        seats: what is gained in each seat.
        total: the sum of the gains, whose interval respects that the seats of a round share a deal.
        rounds: how many rounds that sum is the mean of.
        updates: updates of the best response.
        max_updates: those that it was allowed.
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
        seats = [
            {
                "seat": seat,
                "games": one.games,
                "value": list(one.value),
                "best_response_value": list(one.best_response_value),
                "gain": list(one.gain),
            }
            for seat, one in enumerate(self.seats)
        ]
        budget = {
            "updates": self.updates,
            "max_updates": self.max_updates,
            "settled": self.settled,
            "training_games": self.training_games,
            "minutes": self.minutes,
        }
        return {
            "kind": "best_response_gain",
            "env_id": self.env_id,
            "model": self.model,
            "seats": seats,
            "total": list(self.total),
            "rounds": self.rounds,
            "found": self.found,
            "budget": budget,
            "failures": dict(self.failures),
            "exact": None if self.exact is None else self.exact.to_dict(),
        }


def gains_of(
    num_players: int, own: Mapping[int, float], best: Mapping[int, float]
) -> tuple[list[SeatGain], Interval, int]:
    """Compare two matches game by game.

    Returns the gain in each seat, the sum of the gains, and the number of rounds that it is the mean of.

    Game i is about seat i % num_players, and the games of one round (equal i // num_players) have the same
    deal, as in ``play_match``. Only games that are finished in both matches count, and in the sum only rounds
    whose games all are.

    Args:
        num_players: number of seats.
        own: reward in the game's seat by number of the game, where the policy has every seat.
        best: the same where the best response has that seat.
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


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(len(values), sum(values), sum(value * value for value in values))


def exploited_table(result: Exploited) -> Group:
    """Return the gains as a table with notes: what they are, the budget, and the exact measure beside."""
    exact = None if result.exact is None else result.exact.played_gains or result.exact.exploitability
    table = Table(title=Text(one_line(f"{result.model} in {result.env_id}")))
    for name in ("Seat", "Games", "Policy", "Best response", "Gain", *(["Exact"] if exact else [])):
        table.add_column(name, justify="right")
    for seat, one in enumerate(result.seats):
        texts = [str(seat), f"{one.games:,}", _text(one.value), _text(one.best_response_value)]
        table.add_row(*texts, _text(one.gain), *([f"{exact[seat]:.4f}"] if exact else []))
    table.add_section()
    table.add_row("Sum", "", "", "", _text(result.total), *([f"{sum(exact):.4f}"] if exact else []))
    return Group(table, Text("\n".join(_notes(result))))


def _notes(result: Exploited) -> list[str]:
    settled = f" of {result.max_updates}, then it settled" if result.settled else ""
    none = "" if result.found else "The sum of the gains is not above 0 beyond chance: no gain found. "
    if result.total.low > 0 and not result.found:
        none = f"{result.rounds} rounds are too few to trust the interval of the sum: no gain found. "
    lines = [
        f"{none}Gains are estimates, with 95% intervals, of what this response gains; the expectation of "
        "their sum is a lower bound of what the best of all responses would gain.",
        f"Budget of the best response: {result.updates} updates{settled}, {result.training_games:,} games, "
        f"{result.minutes:.1f} minutes.",
    ]
    if not result.settled:
        lines.append("It had not settled: the same command with more --updates goes on, and may find more.")
    if result.failures:
        failed = sum(result.failures.values())
        lines.append(f"{failed} games failed and are not counted: {failures_text(result.failures)}")
    if result.exact is not None:
        lines.append(_note_on(result.exact))
    return lines


def _note_on(exact: NashConvResult) -> str:
    legal = f"legal answers only, which have {100 * exact.legal_mass:.1f}% of the probability"
    if exact.played_gains is None:
        return f"Exact is for the {legal}. In the games, invalid moves lose."
    counted = "Exact counts invalid moves as the games do: they lose."
    return f"{counted} NashConv is {exact.nash_conv:.4f}, for the {legal}."


def _text(number: Interval) -> str:
    return f"{number.mid:+.3f} ± {number.high - number.mid:.3f}"
