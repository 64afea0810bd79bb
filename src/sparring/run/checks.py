"""Check a configuration before anything is loaded: quickly, without torch and without a network."""

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparring.config import Config
from sparring.config.algorithms import Algorithm, OverAnswersSettings, PythonAlgorithm
from sparring.config.play import EnvSettings, EvaluatedGameSettings, GameSettings
from sparring.config.population import PopulationSettings
from sparring.config.programs import PythonProgram
from sparring.config.run import TrackingSettings
from sparring.core import Arena, InputError
from sparring.core.adapters import BASE
from sparring.core.own_classes import name_of
from sparring.envs.catalog import check_playable, describe, library_of
from sparring.envs.scripted import PLAYER_NAMES, check_moves_are_told
from sparring.envs.templates import get_template
from sparring.learn.model_files import BUNDLED_MODEL, check_model_name, check_quantization
from sparring.population.meta_strategies import check_installed
from sparring.run.best import check_keep_best
from sparring.run.evaluation_opponents import (
    MIXTURE,
    OPPONENTS,
    evaluation_opponents,
    measures_nash_conv,
    tells_moves,
    why_base,
)
from sparring.run.given_adapters import check_given
from sparring.run.programs import build_program, check_first_batch, policies_of
from sparring.run.rewards import composed_transforms


def check_config(config: Config) -> list[str]:
    """Check whether a run with this configuration can start; return one line for each check that passed.

    Raises:
        InputError: the run cannot start. A model that has yet to be downloaded may still be missing.
    """
    with renaming({"model": "model.name"}):
        check_model_name(config.model.name)
    check_quantization(config.model.quantization)
    if config.run.runtime == "local" and config.model.device.startswith("cuda"):
        from sparring.run.threads import choose_device  # torch takes seconds to import: only if needed

        choose_device(config.model.device)
    found = [_model_line(config.model.name)]
    _check_frozen(config)
    composed_transforms(config)
    program = build_program(config)
    found += _check_games(config) if program is None else _check_program(program)
    policies = config.policies if program is None else policies_of(program)
    given = check_given(config, policies)
    found += [f"adapter {directory} for {name}" for name, directory in given.items()]
    algorithms = config.learning.algorithms_of(policies)
    _check_answers_are_listed(config, algorithms)
    for field, algorithm in algorithms.items():
        found += _check_algorithm(algorithm, field)
    if config.population.sample_mode == "meta-nash":
        check_installed("population.sample_mode")
    check_keep_best(config)
    if config.evaluation.patience and not config.evaluation.every:
        raise InputError("evaluation.patience", "nothing is measured during training", "Set evaluation.every")
    if config.evaluation.patience and _has_no_matches(config):
        raise InputError("evaluation.patience", "there are no matches", "Name evaluation.opponents")
    check_extras(config.tracking)
    found += _check_runtime(config)
    return found


def _model_line(name: str) -> str:
    if name == BUNDLED_MODEL or Path(name).is_dir():
        return f"model {name}"
    return f"model {name} (not looked at: the run finds it in the cache or downloads it)"


def _check_games(config: Config) -> list[str]:
    found = [f"environment {_check_env(env, f'envs.{index}')}" for index, env in enumerate(config.envs)]
    for index, game in enumerate(config.evaluated):
        if config.evaluation.envs:
            found.append(f"evaluations in {_check_env(game, f'evaluation.envs.{index}')}")
        found += _check_evaluation(config, index, game)
    names = config.population.fixed_opponents
    for env_id in [env.id for env in config.envs if env.num_players > 1]:
        for place, name in enumerate(names):
            _check_opponent(config, f"population.fixed_opponents.{place}", name, env_id)
    return found + ([f"opponents of training: {', '.join(sorted(names))}"] if names else [])


def _check_evaluation(config: Config, index: int, game: EvaluatedGameSettings) -> list[str]:
    """Check the opponents and the exact measure of a game of evaluations."""
    field = "evaluation" if game.opponents is None else f"evaluation.envs.{index}"
    names = evaluation_opponents(config, game)
    for place, name in enumerate(names):
        if name == MIXTURE:
            _check_mixture(config, f"{field}.opponents.{place}")
        else:
            _check_opponent(config, f"{field}.opponents.{place}", name, game.id)
    found = [f"opponents in {config.label(game)}: {', '.join(sorted(names))}"] if names else []
    if measures_nash_conv(config, game):
        check_nash_conv(game.id)
        check_models_end_answers(game, "evaluation.nash_conv", "Set it to false, or leave stop out")
        found.append(f"NashConv of {config.label(game)}")
    return found


def _has_no_matches(config: Config) -> bool:
    """Whether evaluations play no games."""
    return not any(game.num_players == 1 or evaluation_opponents(config, game) for game in config.evaluated)


def _check_program(program: Arena) -> list[str]:
    check_first_batch(program)
    return [f"program with the policies {', '.join(policies_of(program))}"]


def _check_frozen(config: Config) -> None:
    """Raise an InputError if an adapter has the name of a scripted player, which would play in its place."""
    for name in PLAYER_NAMES:
        if name in config.frozen:
            raise InputError(f"frozen.{name}", "is the name of a scripted player", "Rename it")


def _check_answers_are_listed(config: Config, algorithms: Mapping[str, Algorithm]) -> None:
    """Raise an InputError if an algorithm over legal answers is to learn where none are listed, or where
    texts end answers.

    Args:
        config: the run's configuration.
        algorithms: the algorithms of all policies, by the field that names them.
    """
    fix = "Choose another algorithm, such as reinforce"
    for field, algorithm in algorithms.items():
        if isinstance(algorithm, OverAnswersSettings) and _plays_freely(config):
            problem = f"{algorithm.type} learns from legal answers, and the roles of this program have none"
            raise InputError(field, problem, fix)
    for index, env in enumerate(config.envs):
        for field, algorithm in config.learning.algorithms_of(env.policies or config.policies).items():
            if not isinstance(algorithm, OverAnswersSettings):
                continue
            check_models_end_answers(env, field, fix)
            if not tells_moves(env.id):
                problem = (
                    f"{algorithm.type} learns from legal answers, and {env.name} (envs.{index}) lists none"
                )
                raise InputError(field, problem, fix)


def _plays_freely(config: Config) -> bool:
    """Whether the run plays one of the package's programs, in which roles answer in their own words."""
    return config.program is not None and not isinstance(config.program, PythonProgram)


def _check_algorithm(algorithm: Algorithm, field: str) -> list[str]:
    """Build an algorithm of the user's own, whose file imports torch."""
    if not isinstance(algorithm, PythonAlgorithm):
        return []
    from sparring.learn.algorithms import build_algorithm

    build_algorithm(algorithm, field)
    return [f"algorithm {name_of(algorithm.path)}"]


def _check_runtime(config: Config) -> list[str]:
    """Check that the packages a cluster needs are installed; start nothing."""
    if config.run.runtime == "local":
        return []
    needed = ["ray"] if config.inference.engine == "embedded" else ["ray", "vllm"]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                "run.runtime" if package == "ray" else "inference.engine",
                f"the package {package} is not installed",
                f"Run: pip install 'sparring[{package}]'",
            )
    settings = config.ray
    where = f"{settings.address} (not checked)" if settings.address else "this machine"
    counts = {"engine": settings.engines, "learner": settings.learners, "collector": settings.collectors}
    parts = ", ".join(f"{count} {kind}(s)" for kind, count in counts.items())
    return [f"Ray on {where}: {parts}"]


def default_seats(env_id: str) -> int:
    """Return the default number of players of an environment: two where that is possible."""
    possible = describe(env_id).players
    return 2 if 2 in possible else possible[0]


def checked_seats(env_id: str, num_players: int | None, template: str | None) -> int:
    """Return the number of seats; raise an InputError as :func:`check_environment` does."""
    seats = num_players or default_seats(env_id)
    check_environment(env_id, seats, template or "default")
    return seats


def check_environment(env_id: str, num_players: int, template: str) -> None:
    """Raise an InputError unless the environment, its number of players and the template are possible."""
    check_playable(env_id, num_players)
    get_template(template)


def check_opponent(name: str, env_id: str, frozen: Collection[str] = ()) -> None:
    """Raise an InputError unless ``name`` is an opponent that can play the environment.

    Opponents are ``base``, scripted players, and the adapters of ``frozen``.
    """
    known = (*OPPONENTS, *frozen)
    if name not in known:
        raise InputError("opponent", f"there is no opponent {name!r}", f"Use one of {', '.join(known)}")
    if name == "random" and not tells_moves(env_id):
        raise InputError(
            "opponent",
            f"no player can play {env_id} at random: it does not list its legal moves",
            "Use base as the opponent",
        )
    if name == "optimal":
        _check_optimal(env_id)


def check_nash_conv(env_id: str) -> None:
    """Raise an InputError unless NashConv can be computed for this environment."""
    if library_of(env_id) != "openspiel":
        raise InputError(
            "evaluation.nash_conv",
            f"{env_id} is not an OpenSpiel game",
            "Leave it out",
        )
    from sparring.evaluation.nash_conv import states_of

    with renaming({"env.id": "evaluation.nash_conv"}):
        states_of(env_id)


def check_models_end_answers(env: GameSettings, field: str, fix: str) -> None:
    """Raise an InputError if texts end the answers in a game whose legal answers are to be scored: a legal
    answer has the token with which a model ends it.
    """
    if env.stop:
        problem = f"scores answers that a model ends by itself, and in {env.name} stop is {env.stop}"
        raise InputError(field, problem, fix)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Let an InputError name the field as the user wrote it."""
    try:
        yield
    except InputError as error:
        raise InputError(names.get(error.field, error.field), error.problem, error.fix) from error


def _check_env(env: GameSettings, field: str) -> str:
    names = {"env.id": f"{field}.id", "env.num_players": f"{field}.num_players"}
    with renaming({**names, "env.template": f"{field}.template"}):
        check_environment(env.id, env.num_players, env.template)
    if isinstance(env, EnvSettings) and env.random_opening:
        check_moves_are_told(env.id, f"{field}.random_opening", "Set 0")
    players = "1 player" if env.num_players == 1 else f"{env.num_players} players"
    return f"{env.id}, {players}, template {env.template}"


def _check_opponent(config: Config, field: str, name: str, env_id: str) -> None:
    """Check an opponent that ``field`` names."""
    with renaming({"opponent": field, "env.id": field}):
        check_opponent(name, env_id, config.frozen)


def _check_mixture(config: Config, field: str) -> None:
    """Raise an InputError unless evaluations can play against the fixed opponents of training."""
    if config.population.sample_mode != "fixed":
        raise InputError(field, 'mixture is for population.sample_mode "fixed"', "Name an opponent")
    if config.evaluation.games_alongside:
        raise InputError(
            "evaluation.games_alongside", f"{field} is mixture, which has no such games", "Set 0"
        )
    if MIXTURE in config.frozen:
        raise InputError(f"frozen.{MIXTURE}", "is the name of all fixed opponents together", "Rename it")


def notes_on(config: Config) -> list[str]:
    """Return what a user who starts a run with this configuration should know, one line each."""
    notes = _note_on_lags(config.population)
    if config.evaluation.opponents is not None:
        return notes
    open_ = [game for game in config.evaluated if game.opponents is None]
    return notes + [why_base(game.id) for game in open_ if BASE in evaluation_opponents(config, game)]


def _note_on_lags(population: PopulationSettings) -> list[str]:
    """Return a note if fewer copies stay active than have a lag in the range. The latest one is active."""
    low, high = population.lag_range
    needed = high + 1 if low == 0 else high - low + 2
    if population.sample_mode != "lagged" or population.max_active_lora >= needed:
        return []
    drawn = high - (needed - population.max_active_lora)
    of_range = f"only those up to {drawn} are drawn" if drawn >= low else "none is drawn"
    why = f"because population.max_active_lora is {population.max_active_lora}; all need {needed}"
    return [f"of the lags {low} to {high}, {of_range}, {why}"]


def _check_optimal(env_id: str) -> None:
    """Check that the optimal player can exist; an OpenSpiel game is not solved, which can take seconds."""
    if library_of(env_id) == "openspiel":
        from sparring.envs.solver import check_solvable

        check_solvable(env_id)
        return
    from sparring.envs.scripted import make_player

    make_player("optimal", env_id, seed=0)


def check_extras(tracking: TrackingSettings) -> None:
    """Raise an InputError unless the packages for what is logged in addition are installed."""
    wanted = {"wandb_project": tracking.wandb_project is not None, "tensorboard": tracking.tensorboard}
    for field, is_wanted in wanted.items():
        package = field.removesuffix("_project")
        if is_wanted and importlib.util.find_spec(package) is None:
            raise InputError(
                f"tracking.{field}",
                f"the package {package} is not installed",
                f"Run: pip install 'sparring[{package}]'",
            )
