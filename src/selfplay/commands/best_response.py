"""The training of a best response: a configuration in which a frozen policy is the only opponent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfplay.commands.exploited_policy import ExploitedPolicy
from selfplay.commands.model_source import ModelSource
from selfplay.config import Config
from selfplay.config.play import GameSettings
from selfplay.config.problems import first_problem
from selfplay.core import InputError
from selfplay.core.adapter_config import more_shape_of, read_adapter_config
from selfplay.training.evaluation_opponents import MIXTURE, tells_moves

EVALUATE_EVERY = 5
PATIENCE = 4
MOST_AT_ONCE = 1024
"""Games in flight."""
ALPHA = 0.1
"""Weight of the pull to the reference, in units of the advantages' root mean square. Near an equilibrium,
good and bad answers differ by some hundredths of it, so a larger pull would hide what can be gained."""
UNBOUNDED = 1e6
"""The memory: what earlier games say of an answer stays true against a policy that does not change, so all
that the decay leaves of them count, however many games of the batch meet the prompt."""


@dataclass(frozen=True)
class Budget:
    """What the best response is given: updates, games of each, and games to measure it; its seed."""

    updates: int
    games_per_step: int
    games: int
    seed: int


def best_response_config(
    source: ModelSource, policy: ExploitedPolicy, env: GameSettings, budget: Budget, from_base: bool
) -> Config:
    """Return the training of a best response: one seat, drawn uniformly, against the policy in all others.

    The constants are those of the preset ``kuhn``, except that the policy moves faster, may become surer,
    remembers more games, and its average forgets faster: a best response to an opponent that stays the same
    does not circle. Games begin at the beginning, since all moves of the other seats are the policy's.

    Raises:
        InputError: an adapter has a shape that cannot be trained.
    """
    alone = len(policy.opponents) == 1
    evaluated = next(iter(policy.opponents)) if alone else MIXTURE
    data: dict[str, Any] = {
        "seed": budget.seed,
        "model": source.model.model_dump(exclude_none=True),
        "envs": [env.model_dump() | {"policies": list(policy.policies), "random_opening": 0}],
        "inference": {"max_tokens": source.max_tokens},
        "collection": {
            "games_per_step": budget.games_per_step,
            "concurrency": min(budget.games_per_step, MOST_AT_ONCE),
        },
        "buffer": {"log_batches": False},
        "learning": {"steps": budget.updates, "schedule": "constant", "average_decay": 0.8},
        "population": {
            "sample_mode": "fixed",
            "fixed_opponents": list(policy.opponents),
            "weights": [] if alone else list(policy.opponents.values()),
            "places": policy.places,
        },
        "evaluation": {
            "every": EVALUATE_EVERY,
            "patience": PATIENCE,
            "games": budget.games_per_step,
            "games_during": budget.games_per_step,
            "opponents": [evaluated],
        },
        "run": {"save_every": EVALUATE_EVERY},
    }
    if tells_moves(env.id):
        magnet = {"type": "magnet", "alpha": ALPHA, "uniform": 0.01, "memory": UNBOUNDED}
        data["learning"] |= {"learning_rate": 2e-4, "momentum": 0.8, "epochs": 2, "algorithm": magnet}
    if policy.adapters:
        data["lora"] = _lora_section(source, next(iter(policy.adapters.values())))
        data["frozen"] = _absolute(policy.adapters)
        data["start"] = {} if from_base else _absolute(policy.start)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise first_problem(error, data) from error


def _lora_section(source: ModelSource, adapter: Path) -> dict[str, Any]:
    """Return the settings of ``lora`` that make adapters of the shape of this one.

    Raises:
        InputError: no settings do, as far as the adapter alone tells.
    """
    if source.lora is not None:
        return source.lora.model_dump()
    config = read_adapter_config(adapter)
    if more_shape_of(config):
        problem = (
            f"{adapter} sets {', '.join(more_shape_of(config))}, so a best response cannot have its shape"
        )
        raise InputError("MODEL_OR_RUN", problem, "Name the run that made it")
    return {
        "rank": config["r"],
        "alpha": int(config["lora_alpha"]),
        "target_modules": config["target_modules"],
    }


def _absolute(adapters: Mapping[str, Path]) -> dict[str, str]:
    return {name: os.path.abspath(path) for name, path in adapters.items()}
