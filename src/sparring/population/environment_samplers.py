"""Environment samplers: they choose the environment of the next training game."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from sparring.core import InputError

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
