"""What an evaluation's file says, and the evaluations of a run in series."""

from collections.abc import Iterable

import msgspec

from selfplay.core.confidence_intervals import Interval, wilson_interval
from selfplay.read.warnings import RunWarning


class Evaluation(msgspec.Struct):
    """One file of ``evaluation/``, of one of three kinds.

    A match (``kind`` "match") counts games; ``mean_reward`` is the model's, as low, mid and high. An exact
    evaluation has ``nash_conv``; ``policy`` gives the probabilities of actions by information state and
    ``observations`` the text that a player reads there. A program's measure (``kind`` "measure") has a name,
    one entry of ``values`` for each item, and their mean with its 95% interval; it is a share if the values
    are successes and failures.
    """

    step: int = -1
    env_id: str = ""
    kind: str = ""
    opponent: str = ""
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    invalid: dict[str, int] = {}
    mean_reward: list[float] = []
    nash_conv: float | None = None
    legal_mass: float | None = None
    policy: dict[str, dict[str, float]] = {}
    observations: dict[str, str] = {}
    name: str = ""
    count: int = 0
    is_share: bool = False
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    values: list[float] = []
    is_playable: bool = True

    @property
    def is_consistent(self) -> bool:
        """Whether no count is negative or above the number of games."""
        counts = (self.wins, self.draws, self.losses, self.invalid.get("model", 0))
        return all(0 <= count <= self.games for count in counts)

    def rates(self) -> dict[str, Interval]:
        """Return the shares of a match's wins, draws, losses, and games ended by the model's invalid move.

        The last are counted among the losses, and games ended by the opponent's invalid move among the wins.
        """
        return {
            "Wins": wilson_interval(self.wins, self.games),
            "Draws": wilson_interval(self.draws, self.games),
            "Losses": wilson_interval(self.losses, self.games),
            "Lost by an invalid move": wilson_interval(self.invalid.get("model", 0), self.games),
        }

    def reward(self) -> Interval | None:
        """Return a match's mean reward with its interval; ``None`` if the file does not have it."""
        return Interval(*self.mean_reward) if len(self.mean_reward) == 3 else None

    def interval(self) -> Interval:
        """Return a measure's mean with its interval, which lies between 0 and 1 only if it is a share."""
        return Interval(self.low or 0.0, self.mean or 0.0, self.high or 0.0)


def match_title(env_id: str, opponent: str) -> str:
    """Return what was played against whom; a one-player game is played alone."""
    return f"{env_id} against {opponent}" if opponent else f"{env_id} alone"


def matches_of(evaluations: Iterable[Evaluation]) -> dict[tuple[str, str], list[Evaluation]]:
    """Group the matches that have games by environment and opponent, each group in order of steps."""
    series: dict[tuple[str, str], list[Evaluation]] = {}
    for one in evaluations:
        if one.kind == "match" and one.games > 0:
            series.setdefault((one.env_id, one.opponent), []).append(one)
    return series


def exact_of(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    """Group the exact evaluations by environment, each group in order of steps."""
    series: dict[str, list[Evaluation]] = {}
    for one in evaluations:
        if one.nash_conv is not None:
            series.setdefault(one.env_id, []).append(one)
    return series


def measures_of(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    """Group the complete measures by name, in order of names, and each group in order of steps."""
    series: dict[str, list[Evaluation]] = {}
    for one in evaluations:
        if one.kind == "measure" and one.count > 0 and None not in (one.low, one.mean, one.high):
            series.setdefault(one.name, []).append(one)
    return dict(sorted(series.items()))


def are_shares(measures: list[Evaluation]) -> bool:
    """Return whether all measures of a series are shares: a mean's values may be 0 and 1 by chance."""
    return all(measure.is_share for measure in measures)


def unplayable_warnings(evaluations: Iterable[Evaluation]) -> list[RunWarning]:
    """Return a warning for each environment whose last NashConv is of a policy that cannot be played.

    Args:
        evaluations: the evaluations by step.
    """
    return [
        RunWarning(
            f"cannot be played/{env_id}",
            f"the NashConv of {env_id} is of a policy that cannot be played: "
            f"{found[-1].legal_mass or 0.0:.2%} of its probability is on legal answers",
            "check inference.max_tokens and the template; see the share of games lost by invalid moves",
        )
        for env_id, found in exact_of(evaluations).items()
        if not found[-1].is_playable
    ]
