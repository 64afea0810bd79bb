"""Load the configuration of a new run, or say what is wrong with it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from sparring.config import Config, config_problems, load_config, preset_names
from sparring.config.loading import load_known
from sparring.core import InputError
from sparring.run.checks import check_config, check_nash_conv, check_opponent
from sparring.run.run_names import named_run_directory

OPPONENTS, NASH_CONV = "evaluation.opponents", "evaluation.nash_conv"


def load_fitted(
    source: str,
    overrides: Mapping[str, str],
    recipe: str | None = None,
    load: Callable[[str, Mapping[str, str | None], str | None], Config] = load_config,
) -> tuple[Config, list[str]]:
    """Load a configuration as ``load`` does; also return a note for each measure that is left out.

    The opponents and the NashConv of a preset are for its own game. Where ``overrides`` name another game,
    those that it does not have are left out, unless ``overrides`` name them too.
    """
    config = load(source, overrides, recipe)
    is_preset = source in preset_names() and not Path(source).is_file()
    if not is_preset or not {"envs", "envs.0.id"} & set(overrides):
        return config, []
    games = [env.env_id for env in config.envs]
    lacking: dict[str, str] = {}
    changes: dict[str, str | None] = {}
    if OPPONENTS not in overrides:
        named = config.evaluation.opponents or []
        lacking = {name: why for name in named if (why := _problem(partial(check_opponent, name), games))}
        if lacking:
            left = [name for name in named if name not in lacking]
            changes[OPPONENTS] = json.dumps(left) if left else None
    measures_nash_conv = NASH_CONV not in overrides and config.evaluation.nash_conv
    if measures_nash_conv and (why := _problem(check_nash_conv, games)):
        lacking["NashConv"] = why
        changes[NASH_CONV] = "false"
    notes = [f"{name} of the preset {source} is left out: {why}" for name, why in lacking.items()]
    return (load(source, {**overrides, **changes}, recipe) if changes else config), notes


def problems_of(
    source: str, overrides: Mapping[str, str], recipe: str | None = None, name: str | None = None
) -> list[InputError]:
    """Return why a run of that ``name`` cannot start, with the arguments of ``load_fitted``.

    What is played, and the files that are named, are looked at only where nothing is wrong but fields that do
    not exist. These hide what is wrong with others of their section, which they may have meant.
    """
    problems = config_problems(source, overrides, recipe)
    try:
        config, _ = load_fitted(source, overrides, recipe, load_known)
    except InputError as wrong:  # one of the problems, or what a field that does not exist may have meant
        return problems or [wrong]
    found: list[InputError] = []
    if name is not None and (error := _error(partial(named_run_directory, Path(config.run.directory), name))):
        found.append(error)
    check_config(config, found)
    hidden = {_section_of(one) for one in problems}
    return problems + [one for one in found if _section_of(one) not in hidden]


def _section_of(error: InputError) -> str:
    return error.field.rpartition(".")[0]


def _problem(check: Callable[[str], None], games: list[str]) -> str:
    """Return why a check fails for one of the games; empty if it passes."""
    errors = (_error(partial(check, env_id)) for env_id in games)
    return next((error.problem for error in errors if error), "")


def _error(check: Callable[[], object]) -> InputError | None:
    try:
        check()
    except InputError as error:
        return error
    return None
