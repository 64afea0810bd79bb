"""The environment of the next training game: samplers draw it, and a curriculum lets them draw one more
often, the more the results of the policies in it vary."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Generic, TypeVar

from sparring.core import InputError
from sparring.population.results import DECAY, RATED_AFTER

EnvSpec = TypeVar("EnvSpec")


class BaseEnvSampler(ABC, Generic[EnvSpec]):
    """Chooses among environment specs of any kind. It holds no random state.

    Raises:
        InputError: there is no spec to choose from.
    """

    def __init__(self, train_env_specs: Sequence[EnvSpec]) -> None:
        if not train_env_specs:
            raise InputError("train_env_specs", "the list is empty", "Name at least one environment.")
        self.train_env_specs = list(train_env_specs)

    @abstractmethod
    def sample(self, rng: random.Random) -> EnvSpec:
        """Return the spec of the next game, drawn with ``rng``."""


class UniformRandomEnvSampler(BaseEnvSampler[EnvSpec]):
    """Draws every environment with the same probability."""

    def sample(self, rng: random.Random) -> EnvSpec:
        """Return a uniformly random spec."""
        return rng.choice(self.train_env_specs)


class WeightedEnvSampler(BaseEnvSampler[EnvSpec]):
    """Draws each environment in proportion to its weight.

    Args:
        train_env_specs: the specs to choose from.
        weights: one for each spec; finite, not negative, and not all 0. They need not sum to 1.

    Raises:
        InputError: the weights violate these conditions.
    """

    def __init__(self, train_env_specs: Sequence[EnvSpec], weights: Sequence[float]) -> None:
        super().__init__(train_env_specs)
        fix = "Give each environment a weight of 0 or more, and at least one more than 0."
        if len(weights) != len(self.train_env_specs):
            problem = f"there are {len(weights)} weights for {len(self.train_env_specs)} environments"
            raise InputError("weights", problem, fix)
        for weight in weights:
            if not math.isfinite(weight) or weight < 0:
                raise InputError("weights", f"{weight} is not a weight", fix)
        if not any(weights):
            raise InputError("weights", "all of them are 0", fix)
        self.weights = list(weights)

    def sample(self, rng: random.Random) -> EnvSpec:
        """Return a random spec by weight."""
        return rng.choices(self.train_env_specs, self.weights)[0]


@dataclass
class FadingRewards:
    """The rewards of one seat, in units of half the game's range about its middle.

    In the sums a game counts ``DECAY`` to the number of later ones.
    """

    games: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, reward: float) -> None:
        """Count a game."""
        self.games = DECAY * self.games + 1
        self.total = DECAY * self.total + reward
        self.squares = DECAY * self.squares + reward * reward

    @property
    def variance(self) -> float:
        """The variance of these rewards and of two more, the worst and the best: above 0, and at most 1."""
        games = self.games + 2
        return (self.squares + 2) / games - (self.total / games) ** 2


class Curriculum:
    """The weights of environments, which follow results.

    An environment's weight is multiplied by v, the variance of what a trained seat has earned there lately:

        v = (Q + 2) / (n + 2) - (S / (n + 2))^2,

    where n, S and Q are the number, the sum and the sum of squares of the seat's rewards, in units of half
    the game's range about its middle (and cut to -1 and 1), and each further game multiplies them by
    ``DECAY``. Of several seats it is the mean, each with its number of games. If games are won or lost, v is
    4 x (1 - x) for the win rate x = (wins + 1) / (n + 2): one that the policy wins half of the time counts
    most, as in "sampling for learnability" (Rutherford et al. 2024, arXiv 2408.15099), and one that it always
    wins, loses or draws next to nothing. Seats are taken apart, so it holds in a game of a policy against
    itself too. An environment of fewer than 10 games has the largest v of the others.

    Args:
        ranges: the smallest and the largest reward of each environment, by its key; -1 and 1 are taken in
            place of a range that is empty or has no end.
    """

    def __init__(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        self._ranges = {
            key: (low, high) if 0 < high - low < math.inf else (-1.0, 1.0)
            for key, (low, high) in ranges.items()
        }
        self._rewards: dict[str, dict[int, FadingRewards]] = {key: {} for key in ranges}
        self._games = dict.fromkeys(ranges, 0)

    def add(self, key: str, rewards: Mapping[int, float]) -> None:
        """Count a game: the rewards of the trained seats."""
        self._games[key] += 1
        low, high = self._ranges[key]
        for seat, reward in rewards.items():
            scaled = (reward - (low + high) / 2) / ((high - low) / 2)
            self._rewards[key].setdefault(seat, FadingRewards()).add(min(max(scaled, -1.0), 1.0))

    def variances(self) -> dict[str, float | None]:
        """Return v by environment; ``None`` where too few games have ended."""
        return {
            key: _mean_variance([*seats.values()]) if self._games[key] >= RATED_AFTER else None
            for key, seats in self._rewards.items()
        }

    def weights(self, keys: Sequence[str], weights: Sequence[float]) -> list[float]:
        """Return the weights of environments with these keys, from the ones that were set."""
        found = self.variances()
        largest = max((one for one in found.values() if one is not None), default=1.0)
        known = [largest if (one := found[key]) is None else one for key in keys]
        return [weight * variance for weight, variance in zip(weights, known, strict=True)]

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the games and the sums as JSON-able data: by environment one list for each seat, which comes
        first."""
        return {
            key: {"games": self._games[key], "seats": [[seat, *astuple(one)] for seat, one in seats.items()]}
            for key, seats in self._rewards.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from :meth:`state_dict`."""
        for key, one in state.items():
            self._games[key] = one["games"]
            self._rewards[key] = {int(seat): FadingRewards(*sums) for seat, *sums in one["seats"]}


def _mean_variance(seats: Sequence[FadingRewards]) -> float:
    return sum(one.games * one.variance for one in seats) / sum(one.games for one in seats)
