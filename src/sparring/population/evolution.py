"""Evolution: which players of a league are replaced, and of whom their next adapters are made.

Players of one role and the same seats are compared by what they earn in the same games against opponents
that stay the same. The worst of them is replaced if others earn more, beyond the interval of the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from sparring.config.league import FEWEST_COMPARED, EvolutionSettings
from sparring.core import derive_seed
from sparring.core.confidence_intervals import Interval, mean_interval

Rewards = Mapping[str, Mapping[str, float]]
"""What each player earned, by player and game."""


@dataclass(frozen=True)
class Child:
    """The next adapter of a player: made of those of one parent or two, with noise; the seed decides how."""

    player: str
    parents: tuple[str, ...]
    noise: float
    seed: int


@dataclass(frozen=True)
class Selection:
    """The players that are replaced after an update, and what was measured.

    ``figures`` are ``PLAYER/measure`` (a mean reward), ``PLAYER/measure_low`` and ``PLAYER/measure_high``
    (its 95% interval), and 1 as ``PLAYER/parents/PARENT`` for a player that is replaced.
    """

    children: list[Child] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def replaced(figures: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the parents of each player that was replaced, from the :class:`Selection`'s figures."""
    found: dict[str, list[str]] = {}
    for name in figures:
        player, _, parent = name.partition("/parents/")
        if parent:
            found.setdefault(player, []).append(parent)
    return found


def select(groups: Sequence[Rewards], settings: EvolutionSettings, seed: int) -> Selection:
    """Compare the players of each group, and replace the worst of it if others are better.

    The first parent is the best player; the second is drawn from the others that are better than the worst,
    if there are any. ``seed`` is the update's.
    """
    found = Selection()
    for rewards in groups:
        for player, earned in rewards.items():
            low, mean, high = _interval(list(earned.values()))
            figures = {"measure": mean, "measure_low": low, "measure_high": high}
            found.figures.update({f"{player}/{name}": value for name, value in figures.items()})
        worst, better = compare(rewards)
        if better:
            own = derive_seed(seed, worst)
            parents = (better[0], *Random(own).sample(better[1:], min(1, len(better) - 1)))
            found.children.append(Child(worst, parents, settings.noise, own))
            found.figures.update({f"{worst}/parents/{parent}": 1.0 for parent in parents})
    return found


def compare(rewards: Rewards) -> tuple[str, list[str]]:
    """Return the worst player, and those that are better beyond the interval of the difference, best first.

    Only games that every player has finished count; with fewer than ``FEWEST_COMPARED``, nobody is better.
    Rewards are compared game by game, as the deals are the same. The worst is the worst of n(n - 1)/2
    comparisons, so the interval covers 1 - 0.05 / (n(n - 1)/2).
    """
    games = sorted(set.intersection(*(set(earned) for earned in rewards.values())))
    means = {player: sum(earned[game] for game in games) for player, earned in rewards.items()}
    worst, *others = sorted(means, key=means.__getitem__)
    if len(games) < FEWEST_COMPARED:
        return worst, []
    pairs = len(means) * (len(means) - 1) / 2
    by_rank = reversed(others)
    least = rewards[worst]
    return worst, [
        player
        for player in by_rank
        if _interval([rewards[player][game] - least[game] for game in games], 1 - 0.05 / pairs).low > 0
    ]


def _interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    return mean_interval(len(values), sum(values), sum(one * one for one in values), confidence)
