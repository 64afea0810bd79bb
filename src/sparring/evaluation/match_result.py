"""The result of a match: counts, and the rates and intervals computed from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sparring.core.confidence_intervals import Interval, mean_interval, wilson_interval
from sparring.core.text import one_line

Side = Literal["model", "opponent"]
Outcome = Literal["win", "draw", "loss"]
SOLVED_REWARD = 1.0
"""A one-player game with at least this reward is solved; a smaller reward is partial progress."""


def outcome_of(rewards: Mapping[int, float], seat: int) -> Outcome:
    """Return the outcome for ``seat`` of a game with these final rewards by seat; see :class:`GameRecord`."""
    best_other = max((reward for pid, reward in rewards.items() if pid != seat), default=None)
    if best_other is None:
        return "win" if rewards[seat] >= SOLVED_REWARD else "loss"
    if rewards[seat] == best_other:
        return "draw"
    return "win" if rewards[seat] > best_other else "loss"


@dataclass(frozen=True)
class GameRecord:
    """One finished game from the model's point of view.

    ``outcome``: ``win`` if the model's reward is greater than that of every other seat, ``draw`` if it equals
    the greatest of them, else ``loss``; in a one-player game ``win`` if the reward is at least 1 (solved),
    else ``loss``. ``ended_invalid`` is the side whose invalid move ended the game. ``moves`` and
    ``invalid_moves`` count the model's moves.
    """

    seat: int
    reward: float
    outcome: Outcome
    ended_invalid: Side | None
    truncated: bool
    moves: int
    invalid_moves: int


@dataclass(kw_only=True)
class Outcomes:
    """Counts of finished games, from the model's point of view.

    ``invalid`` counts by side the games that an invalid move of this side ended; they also count as wins or
    losses, or as draws where all players get the same. ``valid_wins`` are the wins in games that no invalid
    move ended. ``truncated`` games reached the turn limit. ``moves`` and ``invalid_moves`` count the model's
    moves. Rates are 95% intervals, Wilson's for shares. They treat games (and moves) as independent, which is
    not quite true for games of one deal.
    """

    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    invalid: dict[Side, int] = field(default_factory=lambda: {"model": 0, "opponent": 0})
    valid_wins: int = 0
    truncated: int = 0
    moves: int = 0
    invalid_moves: int = 0
    reward_sum: float = 0.0
    reward_squares: float = 0.0

    def add(self, game: GameRecord) -> None:
        """Count a game."""
        self.games += 1
        self.wins += game.outcome == "win"
        self.draws += game.outcome == "draw"
        self.losses += game.outcome == "loss"
        if game.ended_invalid is None:
            self.valid_wins += game.outcome == "win"
        else:
            self.invalid[game.ended_invalid] += 1
        self.truncated += game.truncated
        self.moves += game.moves
        self.invalid_moves += game.invalid_moves
        self.reward_sum += game.reward
        self.reward_squares += game.reward**2

    @property
    def valid_games(self) -> int:
        """Games that no invalid move ended."""
        return self.games - self.invalid["model"] - self.invalid["opponent"]

    @property
    def win_rate(self) -> Interval:
        """Wins per game."""
        return wilson_interval(self.wins, self.games)

    @property
    def draw_rate(self) -> Interval:
        """Draws per game."""
        return wilson_interval(self.draws, self.games)

    @property
    def loss_rate(self) -> Interval:
        """Losses per game."""
        return wilson_interval(self.losses, self.games)

    @property
    def win_rate_valid(self) -> Interval:
        """Wins per game among the games that no invalid move ended."""
        return wilson_interval(self.valid_wins, self.valid_games)

    @property
    def invalid_game_rate(self) -> Interval:
        """Games ended by an invalid move of the model, per game."""
        return wilson_interval(self.invalid["model"], self.games)

    @property
    def invalid_move_rate(self) -> Interval:
        """Invalid moves of the model per move of the model."""
        return wilson_interval(self.invalid_moves, self.moves)

    @property
    def mean_reward(self) -> Interval:
        """The model's mean final reward."""
        return mean_interval(self.games, self.reward_sum, self.reward_squares)

    def to_dict(self) -> dict[str, Any]:
        """Return counts and rates as JSON-able values; rates are [low, mid, high]."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "invalid": dict(self.invalid),
            "win_rate": list(self.win_rate),
            "draw_rate": list(self.draw_rate),
            "loss_rate": list(self.loss_rate),
            "win_rate_valid": list(self.win_rate_valid),
            "invalid_game_rate": list(self.invalid_game_rate),
            "invalid_move_rate": list(self.invalid_move_rate),
            "mean_reward": list(self.mean_reward),
        }


_COUNTS = [entry.name for entry in fields(Outcomes)]


@dataclass(kw_only=True)
class MatchResult(Outcomes):
    """A match: what was played, the counts of all finished games, and the counts by seat.

    ``requested_games`` is the number that was requested; ``scheduled_games`` is that number rounded up so
    that every seat is taken equally often. ``failed`` games could not be finished; no other count includes
    them, and ``failure_reasons`` counts them by reason. ``opponent`` is empty in a one-player game.
    ``outcomes`` has one letter for each finished game in order: ``w``, ``d`` or ``l``.
    """

    env_id: str
    num_players: int
    model: str
    opponent: str
    seed: int
    requested_games: int
    failed: int = 0
    failure_reasons: dict[str, int] = field(default_factory=dict)
    outcomes: str = ""
    by_seat: dict[int, Outcomes] = field(default_factory=dict)

    @property
    def scheduled_games(self) -> int:
        """Number of games played, both finished and failed."""
        return self.games + self.failed

    def add(self, game: GameRecord) -> None:
        """Count a game for the match and for the model's seat."""
        super().add(game)
        self.outcomes += game.outcome[0]
        self.by_seat.setdefault(game.seat, Outcomes()).add(game)

    def add_failure(self, reason: str) -> None:
        """Count a game that could not be finished."""
        self.failed += 1
        self.failure_reasons[reason] = self.failure_reasons.get(reason, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; seats are strings, because JSON keys are."""
        return {
            "env_id": self.env_id,
            "num_players": self.num_players,
            "model": self.model,
            "opponent": self.opponent,
            "seed": self.seed,
            "requested_games": self.requested_games,
            "scheduled_games": self.scheduled_games,
            **super().to_dict(),
            "failed": self.failed,
            "failure_reasons": dict(self.failure_reasons),
            "outcomes": self.outcomes,
            "by_seat": {str(seat): self.by_seat[seat].to_dict() for seat in sorted(self.by_seat)},
        }


def failures_text(reasons: Mapping[str, int]) -> str:
    """Return how many games failed, by reason, as one line."""
    return one_line("; ".join(f"{count} x {reason}" for reason, count in reasons.items()))
