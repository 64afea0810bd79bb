"""What a configuration means for ``selfplay psro``: which can be used, and the run of each best response."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfplay.config import Config
from selfplay.config.play import EnvSettings, Games
from selfplay.config.problems import first_problem
from selfplay.config.psro import PsroSettings
from selfplay.core import InputError
from selfplay.core.adapters import BASE, TRAINED
from selfplay.envs.catalog import library_of
from selfplay.envs.openspiel_game import is_constant_sum
from selfplay.training.evaluation_opponents import MIXTURE


def check_psro(config: Config) -> tuple[EnvSettings, PsroSettings]:
    """Return the game and the settings of a PSRO.

    Raises:
        InputError: the configuration is for something else.
    """
    if not isinstance(config.play, Games):
        raise InputError("program", "PSRO is for games", "Give [[envs]]")
    if config.league is not None:
        raise InputError("league", "PSRO has a population of its own", "Leave [league] out")
    if config.evaluation.envs:
        raise InputError("evaluation.envs", "PSRO is evaluated in the game that it plays", "Leave it out")
    if len(config.envs) > 1:
        raise InputError("envs", f"PSRO needs one game, but there are {len(config.envs)}", "Leave one")
    env = config.envs[0]
    if env.num_players != 2:
        problem = f"PSRO needs a game for two, but {env.name} is for {env.num_players}"
        raise InputError("envs.0.num_players", problem, "Choose another game")
    if library_of(env.id) == "openspiel" and not is_constant_sum(env.id):
        problem = f"PSRO is for zero-sum games, and {env.name} is not one"
        raise InputError("envs.0.id", problem, "Choose another game")
    if config.policies != [TRAINED]:
        raise InputError("envs.0.policies", "PSRO needs one policy in both seats", "Leave it out")
    if config.inference.temperature != 1:
        problem = "must be 1, the temperature at which the payoffs of a PSRO are played"
        raise InputError("inference.temperature", problem, "Leave it out")
    if not config.evaluation.every:
        problem = "is 0, but a best response is complete when its evaluations find no better one"
        raise InputError("evaluation.every", problem, "Set it to 5")
    return env, config.psro or PsroSettings()


def best_response_config(
    config: Config, number: int, members: Mapping[str, Path | None], mixture: Mapping[str, float]
) -> Config:
    """Return the run of the best response with this number, from 1 on.

    It keeps the model, the game and everything about playing and learning. Its opponents, in training and in
    evaluations, are the mixture. Evaluations during training have as many games as those before and after it.

    Args:
        config: the configuration of the PSRO.
        number: number of the member.
        members: the adapter of each member so far, in order; ``None`` is the base model.
        mixture: the probability of each of them.
    """
    settings = config.psro or PsroSettings()
    weights = {name: mixture[name] for name in members if mixture[name]}
    start = [*members.values()][0 if settings.start == "first" else -1]
    evaluation = config.evaluation.model_dump(exclude_none=True) | {
        "games_during": config.evaluation.games,
        "patience": settings.patience,
        "games_alongside": 0,
        "opponents": [MIXTURE],
        "nash_conv": False,
    }
    data: dict[str, Any] = config.model_dump(exclude_none=True, exclude={"psro", "population"}) | {
        "seed": config.seed + number,
        "start": {} if start is None else {TRAINED: os.path.abspath(start)},
        "frozen": {name: os.path.abspath(path) for name in weights if (path := members[name]) is not None},
        "population": {
            "sample_mode": "fixed",
            "fixed_opponents": [BASE if members[name] is None else name for name in weights],
            "weights": list(weights.values()),
        },
        "evaluation": evaluation,
    }
    data["run"].pop("keep_best", None)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise first_problem(error, data) from error
