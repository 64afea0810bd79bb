"""Figures: every number of an evaluation under its own name, with its interval and which way is better."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparring.core import InputError
from sparring.core.confidence_intervals import Interval, wilson_interval
from sparring.core.sampling import drawn_text
from sparring.evaluation.results import EvaluationResult, MatchResult, NashConvResult, read_evaluation
from sparring.evaluation.task_result import TaskResult

Kind = Literal["share", "mean", "exact"]
WINS, DRAWS, LOSSES = "win rate", "draw rate", "loss rate"
ENDED_BY_INVALID, INVALID, REWARD = "games ended by an invalid move", "invalid moves", "mean reward"
NASH_CONV, MASS = "NashConv", "mass on legal moves"
ACCURACY, CHANGE, SCORE = "accuracy", "change of accuracy", "mean score"
UNREAD, CUT = "answers that state no answer", "answers cut at the token limit"
OF_TASKS = (ACCURACY, CHANGE, SCORE, UNREAD, CUT)
ANY = (-math.inf, math.inf)
NO_INTERVAL = "no interval"
"""Beside the mean of one value, or of equal ones, which say nothing of how far off it may be."""


class FigureName(NamedTuple):
    """What was measured, in which environment or task, and against whom; a program's has only its name."""

    measure: str
    env_id: str = ""
    opponent: str = ""

    @property
    def name(self) -> str:
        """The measure and the opponent: ``win rate against random``."""
        return f"{self.measure} against {self.opponent}" if self.opponent else self.measure

    def __str__(self) -> str:
        return f"{self.name} in {self.env_id}" if self.env_id else self.name

    @property
    def is_of_task(self) -> bool:
        """Whether a task was asked; ``env_id`` is then its name."""
        return self.measure in OF_TASKS and bool(self.env_id)

    def is_meant_by(self, text: str) -> bool:
        """Whether a user who writes ``text`` means this figure: with the environment, or without."""
        return text in (self.name, str(self))


@dataclass(frozen=True)
class Figure:
    """One number of an evaluation with its 95% interval, which has no width if it is exact.

    Attributes:
        kind: a share of what was counted, a mean over it, or exact.
        count: how many games, moves or items it was measured on; 0 for an exact one.
        smaller_is_better: whether less is better. Of a program's measure only the program knows.
        is_playable: false for the NashConv of a policy that cannot be played, which says nothing about it.
        bounds: the smallest and the largest possible value.
        drawn: how answers were drawn, in words; empty for the distributions that are learned.
    """

    name: FigureName
    interval: Interval
    kind: Kind
    count: int = 0
    counted: Literal["games", "moves", "items", "questions", ""] = ""
    smaller_is_better: bool = False
    is_playable: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)
    drawn: str = ""

    @property
    def value(self) -> float:
        """The number itself."""
        return self.interval.mid

    @property
    def is_known(self) -> bool:
        """Whether it is known how exact the number is: not for a mean of one value, or of equal ones."""
        return self.kind == "exact" or self.interval.high > self.interval.low

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "name": self.name.name,
            "env_id": self.name.env_id,
            "value": self.value,
            "low": self.interval.low,
            "high": self.interval.high,
            "kind": self.kind,
            "count": self.count,
            "counted": self.counted,
            "smaller_is_better": self.smaller_is_better,
            "is_playable": self.is_playable,
        }


def read_figures(directory: Path, step: int) -> list[Figure]:
    """Return the figures of the evaluations after update ``step``, ordered by the names of their files."""
    figures = []
    for path in sorted(directory.glob(f"step-{step:06d}-*.json")):
        try:
            figures += figures_of(read_evaluation(path)[1])
        except ValueError as error:
            raise InputError(str(path), "is damaged: its numbers cannot be", "Evaluate again") from error
    return figures


def figures_of(result: EvaluationResult) -> list[Figure]:
    """Return the figures of an evaluation that have data, the most important first.

    Raises:
        ValueError: its numbers cannot be, such as more wins than games.
    """
    found = [one for one in _figures_of(result) if one.count or one.kind == "exact"]
    if not all(math.isfinite(end) for figure in found for end in figure.interval):
        raise ValueError("a number is not finite")
    return found


def match_figure_names(env_id: str, opponent: str) -> list[FigureName]:
    """Return the names of a match's figures; ``opponent`` is empty in a game for one player."""
    measures = (WINS, DRAWS, LOSSES, ENDED_BY_INVALID, INVALID, REWARD)
    return [FigureName(measure, env_id, opponent) for measure in measures]


def kind_of(figures: Iterable[Figure]) -> Kind:
    """Return the kind of several: a mean may be taken for a share where all its values are 0 and 1."""
    kinds = {figure.kind for figure in figures}
    return kinds.pop() if len(kinds) == 1 else "mean"


def share_text(share: Interval, trials: int) -> str:
    """Return a share and its interval in percent, or a dash without trials."""
    if trials == 0:
        return "-"
    return f"{100 * share.mid:.1f}% ({100 * share.low:.1f} to {100 * share.high:.1f})"


def mean_text(number: Interval, count: int) -> str:
    """Return a mean and its interval, or a dash without values."""
    if count == 0:
        return "-"
    between = f"{number.low:+.2f} to {number.high:+.2f}" if number.high > number.low else NO_INTERVAL
    return f"{number.mid:+.2f} ({between})"


def are_legal_but_invalid(values: Mapping[FigureName, float]) -> bool:
    """Return whether legal answers are likely in a game, most matches of which an invalid move ended."""
    likely = {name.env_id for name, value in values.items() if name.measure == MASS and value > 0.5}
    lost = (name.env_id for name, value in values.items() if name.measure == ENDED_BY_INVALID and value > 0.5)
    return any(env_id in likely for env_id in lost)


def figure_text(figure: Figure) -> str:
    """Return a figure and its interval; an exact one has none, and is marked if it cannot be played."""
    if figure.kind == "exact":
        return f"{figure.value:.4f}{'' if figure.is_playable else ' (!)'}"
    text = share_text if figure.kind == "share" else mean_text
    return text(figure.interval, figure.count)


def _figures_of(result: EvaluationResult) -> Iterator[Figure]:
    if isinstance(result, MatchResult):
        drawn = drawn_text(result.temperature, result.sampling)
        yield from (replace(one, drawn=drawn) for one in _figures_of_match(result))
    elif isinstance(result, NashConvResult):
        yield Figure(
            FigureName(NASH_CONV, result.env_id),
            _exactly(result.nash_conv),
            "exact",
            smaller_is_better=True,
            is_playable=result.is_playable,
            bounds=(0.0, math.inf),
        )
        yield Figure(FigureName(MASS, result.env_id), _exactly(result.legal_mass), "exact")
    elif isinstance(result, TaskResult):
        drawn = drawn_text(result.temperature, result.sampling)
        yield from (replace(one, drawn=drawn) for one in _figures_of_task(result))
    elif result.values:
        kind: Kind = "share" if result.is_share else "mean"
        bounds = (0.0, 1.0) if result.is_share else ANY
        count = len(result.values)
        drawn = "; ".join(f"{role}: {text}" for role, text in result.drawn.items())
        name = FigureName(result.name)
        yield Figure(name, result.interval, kind, count, "items", bounds=bounds, drawn=drawn)


def _figures_of_match(result: MatchResult) -> Iterator[Figure]:
    games, moves = result.games, result.moves
    win, draw, loss, lost, invalid, reward = match_figure_names(result.env_id, result.opponent)
    yield Figure(win, result.win_rate, "share", games, "games")
    yield Figure(draw, result.draw_rate, "share", games, "games")
    yield Figure(loss, result.loss_rate, "share", games, "games", smaller_is_better=True)
    yield Figure(lost, result.invalid_game_rate, "share", games, "games", smaller_is_better=True)
    yield Figure(invalid, result.invalid_move_rate, "share", moves, "moves", smaller_is_better=True)
    yield Figure(reward, result.mean_reward, "mean", games, "games", bounds=ANY)


def _figures_of_task(result: TaskResult) -> Iterator[Figure]:
    count = len(result.answered)
    yield Figure(FigureName(ACCURACY, result.task), result.accuracy, "share", count, "questions")
    change = FigureName(CHANGE, result.task)
    yield Figure(change, result.change, "mean", result.compared, "questions", bounds=(-1.0, 1.0))
    if result.gives_parts:
        yield Figure(FigureName(SCORE, result.task), result.mean_score, "mean", count, "questions")
    for measure, number in ((UNREAD, result.unread), (CUT, result.cut)):
        share = wilson_interval(number, count)
        name = FigureName(measure, result.task)
        yield Figure(name, share, "share", count, "questions", smaller_is_better=True)


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
