"""Evolution: which players of a league are replaced, and of whom their next adapters are made.

Players of one role and the same seats are compared by what they earn in the same games against opponents
that stay the same. The worst of them is replaced if others earn more, beyond the interval of the difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from sparring.config.league import FEWEST_COMPARED, EvolutionSettings
from sparring.core import derive_seed
from sparring.core.confidence_intervals import interval_of

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
            low, mean, high = interval_of(list(earned.values()))
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

    Only games that every player has finished count, and rewards are compared game by game, as the deals are
    the same. If no game is everybody's, all of them count, as independent ones. With fewer than
    ``FEWEST_COMPARED``, nobody is better. The worst is the worst of n(n - 1)/2 comparisons, so the interval
    covers 1 - 0.05 / (n(n - 1)/2).
    """
    common = sorted(set.intersection(*(set(earned) for earned in rewards.values())))
    values = {player: [earned[game] for game in common or earned] for player, earned in rewards.items()}
    means = {player: interval_of(one).mid for player, one in values.items()}
    worst, *others = sorted(means, key=means.__getitem__)
    if min(map(len, values.values())) < FEWEST_COMPARED:
        return worst, []
    confidence = 1 - 0.05 / (len(means) * (len(means) - 1) / 2)
    difference = _paired if common else _unpaired
    by_rank, least = reversed(others), values[worst]
    return worst, [player for player in by_rank if difference(values[player], least, confidence) > 0]


def _paired(values: Sequence[float], least: Sequence[float], confidence: float) -> float:
    """Return the lower bound of the mean difference."""
    return interval_of([one - other for one, other in zip(values, least, strict=True)], confidence).low


def _unpaired(values: Sequence[float], least: Sequence[float], confidence: float) -> float:
    """Return the lower bound of the difference of the means of independent samples."""
    one, other = interval_of(values, confidence), interval_of(least, confidence)
    return one.mid - other.mid - math.hypot(one.mid - one.low, other.mid - other.low)
