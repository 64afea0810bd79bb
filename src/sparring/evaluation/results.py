"""Results of evaluations: counts of matches, measures of programs, and the file of each in a run."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError, Sampling
from sparring.core.confidence_intervals import Interval, interval_of, mean_interval, wilson_interval
from sparring.core.files import write_file
from sparring.core.text import one_line, own_file_part
from sparring.evaluation.task_result import TaskResult

Side = Literal["model", "opponent"]
Outcome = Literal["win", "draw", "loss"]
SOLVED_REWARD = 1.0
"""A one-player game with at least this reward is solved; a smaller reward is partial progress."""
PLAYABLE_LEGAL_MASS = 0.1
"""Below this probability of legal answers, a policy mostly loses by invalid moves, whatever its NashConv."""
UNPLAYABLE_NOTE = (
    "NashConv treats the policy as if it gave only legal answers. With so little probability on them, it "
    "cannot be played: it loses by invalid moves."
)
THOUGHT_NOTE = (
    "Most games ended by invalid moves although legal answers are likely: their probability is that right "
    "after the prompt, where a chat template may open a thought, inside which nothing is said."
)


def outcome_of(rewards: Mapping[int, float], seat: int) -> Outcome:
    """Return the outcome for ``seat`` of a game with these final rewards by seat; see :class:`GameRecord`."""
    best_other = max((reward for pid, reward in rewards.items() if pid != seat), default=None)
    if best_other is None:
        return "win" if rewards[seat] >= SOLVED_REWARD else "loss"
    if rewards[seat] == best_other:
        return "draw"
    return "win" if rewards[seat] > best_other else "loss"


def side_of(invalid_seat: int | None, seat: int) -> Side | None:
    """Return whose invalid move ended a game for the model in ``seat``, if one in ``invalid_seat`` did."""
    if invalid_seat is None:
        return None
    return "model" if invalid_seat == seat else "opponent"


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
        counts = {entry.name: getattr(self, entry.name) for entry in fields(Outcomes)}
        rates = {name: list(getattr(self, name)) for name in _RATES}
        return {**counts, "invalid": dict(self.invalid), **rates}


_RATES = (
    "win_rate",
    "draw_rate",
    "loss_rate",
    "win_rate_valid",
    "invalid_game_rate",
    "invalid_move_rate",
    "mean_reward",
)


@dataclass(kw_only=True)
class MatchResult(Outcomes):
    """A match: what was played, the counts of all finished games, and the counts by seat.

    ``scheduled_games`` is ``requested_games`` rounded up so that every seat is taken equally often.
    ``failed`` games could not be finished; no other count includes them, and ``failure_reasons`` counts them
    by reason. ``opponent`` is empty in a one-player game. ``outcomes`` has one letter for each finished game
    in order: ``w``, ``d`` or ``l``. ``temperature`` and ``sampling`` are the model's; ``None`` in files of
    before they were kept.
    """

    env_id: str
    num_players: int
    model: str
    opponent: str
    seed: int
    requested_games: int
    temperature: float | None = None
    sampling: Sampling | None = None
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
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            **own,
            "sampling": None if self.sampling is None else asdict(self.sampling),
            "scheduled_games": self.scheduled_games,
            **super().to_dict(),
            "by_seat": {str(seat): self.by_seat[seat].to_dict() for seat in sorted(self.by_seat)},
        }


def failures_text(reasons: Mapping[str, int]) -> str:
    """Return how many games failed, by reason, as one line."""
    return one_line("; ".join(f"{count} x {reason}" for reason, count in reasons.items()))


@dataclass(frozen=True)
class MeasureResult:
    """A measure of a program: one value for each item. ``drawn`` says in words how roles drew, where not from
    the model's whole distribution at temperature 1.

    If all values are 0 or 1, it is a share with a Wilson interval, otherwise a mean with a normal interval.
    """

    name: str
    values: list[float]
    drawn: dict[str, str] = field(default_factory=dict)

    @property
    def is_share(self) -> bool:
        """Whether the values are successes (1) and failures (0)."""
        return all(value in (0.0, 1.0) for value in self.values)

    @property
    def interval(self) -> Interval:
        """The mean and its 95% interval."""
        if self.is_share:
            return wilson_interval(round(sum(self.values)), len(self.values))
        return interval_of(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file; mean and interval are there for its other readers."""
        low, mid, high = self.interval
        return {
            "name": self.name,
            "count": len(self.values),
            "is_share": self.is_share,
            "mean": mid,
            "low": low,
            "high": high,
            "values": self.values,
            "drawn": self.drawn,
        }


@dataclass(frozen=True, kw_only=True)
class NashConvResult:
    """The distance of a model's policy from an equilibrium, in the game's own units (chips, in poker).

    ``nash_conv`` is the sum over seats of ``exploitability``: the gain of a best response in that seat over
    the policy itself (``best_response_values`` less ``values``), while all other seats play the policy. At 0
    the policy is an equilibrium. Lists have one entry per seat.

    The policy is the model's distribution at temperature 1 over whole legal answers, normalised.
    ``legal_mass`` is the probability of the legal answers before normalisation, averaged with equal weights
    over information states; ``min_legal_mass`` is the smallest. ``policy`` gives the probability of each
    action by name for each information state; ``observations`` gives the text that the model reads there.
    Both are empty for a game with more than 5,000 information states. ``played_gains`` is ``exploitability``
    if every other answer is invalid and loses, as in games that are played; ``None`` unless asked for.
    """

    env_id: str
    model: str
    nash_conv: float
    exploitability: list[float]
    values: list[float]
    best_response_values: list[float]
    legal_mass: float
    min_legal_mass: float
    policy: dict[str, dict[str, float]]
    observations: dict[str, str]
    played_gains: list[float] | None = None

    @property
    def is_playable(self) -> bool:
        """Whether legal answers are likely enough for ``nash_conv`` to be meaningful for actual play."""
        return self.legal_mass >= PLAYABLE_LEGAL_MASS

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.played_gains is None:
            del values["played_gains"]
        return values | {"is_playable": self.is_playable}


EvaluationResult = MatchResult | NashConvResult | MeasureResult | TaskResult
_KINDS: dict[str, type[EvaluationResult]] = {
    "match": MatchResult,
    "nash_conv": NashConvResult,
    "measure": MeasureResult,
    "task": TaskResult,
}


class _Head(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(ge=0)]
    kind: str


def evaluation_path(directory: Path, step: int, name: str, suffix: str) -> Path:
    """Return ``step-000020-NAME`` with a suffix; no other name has the same path."""
    return directory / f"step-{step:06d}-{own_file_part(name)}{suffix}"


def write_evaluation(directory: Path, step: int, name: str, result: EvaluationResult) -> Path:
    """Write what was measured after an update to ``step-000020-NAME.json``, and return its path.

    The file holds ``step``, ``kind`` (``match``, ``nash_conv``, ``measure`` or ``task``) and the result's
    ``to_dict``.
    """
    kind = next(name for name, cls in _KINDS.items() if isinstance(result, cls))
    content = json.dumps({"step": step, "kind": kind, **result.to_dict()}, indent=1, allow_nan=False)
    directory.mkdir(parents=True, exist_ok=True)
    path = evaluation_path(directory, step, name, ".json")
    write_file(path, f"{content}\n".encode())
    return path


def evaluated_steps(directory: Path) -> list[int]:
    """Return the updates after which evaluations were written, in order; none if there is no directory."""
    found = (re.match(r"step-(\d+)-", path.name) for path in directory.glob("step-*.json"))
    return sorted({int(match[1]) for match in found if match})


def decoded_evaluation(content: bytes) -> tuple[int, EvaluationResult]:
    """Return the step and the result in a file of :func:`write_evaluation`.

    Raises:
        ValueError: it is not an evaluation, or is damaged.
    """
    try:
        head = msgspec.json.decode(content, type=_Head)
        return head.step, msgspec.json.decode(content, type=_KINDS[head.kind])
    except (KeyError, *UNREADABLE) as error:
        raise ValueError(str(error)) from error


def read_evaluation(path: Path) -> tuple[int, EvaluationResult]:
    """Return the step and the result that ``write_evaluation`` wrote.

    Raises:
        InputError: the file is missing or is not an evaluation.
    """
    try:
        return decoded_evaluation(path.read_bytes())
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Evaluate again") from error
    except ValueError as error:
        raise InputError(str(path), "is not an evaluation, or is damaged", "Evaluate again") from error
