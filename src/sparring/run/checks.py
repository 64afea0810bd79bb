"""Check a configuration before anything is loaded: quickly, without torch and without a network."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sparring.config import Config
from sparring.config.algorithms import Algorithm, OverAnswersSettings, PythonAlgorithm
from sparring.config.facts import check_packages
from sparring.config.learning import LearningSettings
from sparring.config.play import EnvSettings, EvaluatedGameSettings, Games, GameSettings
from sparring.config.population import PopulationSettings
from sparring.config.programs import PythonProgram
from sparring.config.questions import TaskSettings
from sparring.core import Arena, EpisodeError, InputError
from sparring.core.adapters import BASE, BUNDLED_MODEL
from sparring.core.chat_tokens import LINE_END
from sparring.core.errors import check_installed, renaming
from sparring.core.own_code import name_of, own_code
from sparring.core.text import counted
from sparring.engine.api_models import api_client
from sparring.envs.catalog import check_can_be_copied, check_playable, describe, library_of
from sparring.envs.policy_lines import is_policy_file, read_lines
from sparring.envs.scripted import PLAYER_NAMES, check_moves_are_told, make_player
from sparring.envs.templates import get_template
from sparring.learn.model_files import check_model_name
from sparring.population import meta_strategies
from sparring.programs.task_sources import check_task
from sparring.run.best import check_keep_best
from sparring.run.evaluation_opponents import (
    MIXTURE,
    OPPONENTS,
    evaluation_calls,
    evaluation_opponents,
    lasting_opponents,
    measures_nash_conv,
    opponent_calls,
    tells_moves,
    why_base,
)
from sparring.run.given_adapters import checked_given, frozen_of
from sparring.run.programs import (
    build_program,
    calls_in_tests,
    check_first_batch,
    roles_of_policies,
    roles_with_answers,
    trained_policies,
)
from sparring.run.rewards import checks_of_rewards

OTHER_ALGORITHM = "Choose another algorithm, such as reinforce"
Result = TypeVar("Result")
_LATER = "the run finds it in the cache or downloads it"


class _Checks:
    """Makes checks, and keeps the lines about what passes. What is wrong is raised, unless it is listed."""

    def __init__(self, problems: list[InputError] | None) -> None:
        self.found: list[str] = []
        self.problems = problems

    def result(self, check: Callable[..., Result], *args: Any) -> Result | None:
        """Return the result of a check; ``None`` if it does not pass."""
        try:
            return check(*args)
        except InputError as error:
            if self.problems is None:
                raise
            if str(error) not in map(str, self.problems):
                self.problems.append(error)
            return None

    def lines(self, check: Callable[..., list[str]], *args: Any) -> None:
        """Keep the lines of a check."""
        self.found += self.result(check, *args) or []


def check_config(config: Config, problems: list[InputError] | None = None) -> list[str]:
    """Check whether a run with this configuration can start; return one line for each check that passed.

    If a list of ``problems`` is given, what is wrong is added to it instead of raised, and only checks of
    what depends on that are left out.

    Raises:
        InputError: the run cannot start. A model that has yet to be downloaded may still be missing.
    """
    checks = _Checks(problems)
    checks.lines(_check_model, config)
    for check in (check_packages, _check_device, _check_frozen):
        checks.result(check, config)
    for check_reward in checks_of_rewards(config):
        checks.result(check_reward)
    program = None
    if isinstance(config.play, Games):
        is_playable, policies = _check_games(config, checks), config.policies
    else:
        program = checks.result(_checked_program, config)
        is_playable, policies = program is not None, trained_policies(config, program) if program else []
        checks.found += [f"program with the policies {', '.join(policies)}"] if program else []
    if is_playable:
        checks.result(_check_draws, config, program)
    for name in (*config.start, *frozen_of(config, "adapter")):
        checks.lines(_check_given, config, name)
    if is_playable:
        checks.lines(_check_algorithms, config, policies)
    if program is not None and not isinstance(config.program, PythonProgram):
        checks.result(_check_roles_list_answers, config, program)
    if config.population.sample_mode == "meta-nash":
        checks.result(check_installed, "population.sample_mode", "populations", *meta_strategies.PACKAGES)
    checks.result(check_keep_best, config)
    for place, task in enumerate(config.evaluation.tasks):
        checks.lines(_check_task, task, place)
    if is_playable:
        checks.result(_check_patience, config)
        checks.result(_check_evolution, config)
    if config.run.runtime == "ray":
        place_of_it = f"{config.ray.address} (not checked)" if config.ray.address else "this machine"
        counts = {name: getattr(config.ray, f"{name}s") for name in ("engine", "learner", "collector")}
        several = ", ".join(f"{count} {kind}(s)" for kind, count in counts.items())
        checks.found.append(f"Ray on {place_of_it}: {several}")
    return checks.found


def _check_model(config: Config) -> list[str]:
    name = config.model.name
    with renaming({"model": "model.name"}):
        check_model_name(name)
    is_here = name == BUNDLED_MODEL or Path(name).exists()
    return [f"model {name}" + ("" if is_here else f" (not looked at: {_LATER})")]


def _check_device(config: Config) -> None:
    if config.inference.sleep or (config.run.runtime == "local" and config.model.device.startswith("cuda")):
        from sparring.run.hardware import choose_device  # torch takes seconds to import: only if needed

        device = choose_device(config.model.device)
        if config.inference.sleep and not device.startswith("cuda"):
            problem = f"vLLM sleeps on CUDA GPUs only, and the run uses {device}"
            raise InputError("inference.sleep", problem, "Leave it out")


def _check_frozen(config: Config) -> None:
    for player in PLAYER_NAMES:
        if player in config.frozen:
            raise InputError(f"frozen.{player}", "is the name of a scripted player", "Rename it")
    files, apis = frozen_of(config, "policy"), frozen_of(config, "api")
    if config.run.runtime == "ray" and (other := min([*files, *apis], default=None)):
        problem = f"{config.frozen[other]} is no adapter, and on Ray only adapters are frozen"
        raise InputError(f"frozen.{other}", problem, 'Set run.runtime = "local"')
    for name, path in files.items():
        if not is_policy_file(path):
            raise InputError(f"frozen.{name}", f"{path} is no file with a policy", "Correct the path")
        read_lines(Path(path))
    if files and not isinstance(config.play, Games):
        name, path = next(iter(files.items()))
        raise InputError(f"frozen.{name}", f"{path} is a policy for games, not programs", "Name an adapter")
    for name, address in apis.items():
        with renaming({"model": f"frozen.{name}"}):
            api_client(address)


def _checked_program(config: Config) -> Arena:
    program = build_program(config)
    assert program is not None
    check_first_batch(program)
    return program


def _check_given(config: Config, name: str) -> list[str]:
    return [f"adapter {checked_given(config, name)} for {name}"]


def _check_task(settings: TaskSettings, place: int) -> list[str]:
    return [check_task(settings, f"evaluation.tasks.{place}.name")]


def _check_patience(config: Config) -> None:
    if config.evaluation.patience and not any(
        game.num_players == 1 or evaluation_opponents(config, game) for game in config.evaluated
    ):
        raise InputError("evaluation.patience", "there are no matches", "Name evaluation.opponents")


def _check_evolution(config: Config) -> None:
    evolves = config.league is not None and config.league.evolution is not None
    if (
        evolves
        and config.program is None
        and not any(lasting_opponents(config, game) for game in config.evaluated)
    ):
        problem = "needs an evaluation opponent that stays the same"
        raise InputError("league.evolution", problem, 'Set evaluation.opponents = ["random"]')


def _check_draws(config: Config, program: Arena | None) -> None:
    """Raise an InputError if a model is asked for settings of its own that it does not have."""
    for game in config.evaluated if program is None else ():
        evaluation_calls(config, game)
    opponent_calls(config)
    for role in program.roles if program is not None else ():
        calls_in_tests(config, role)


def _check_games(config: Config, checks: _Checks) -> bool:
    """Return whether all games can be played, each with its template."""
    right = {f"envs.{index}": False for index in range(len(config.envs))}
    for field, env in zip(right, config.envs, strict=True):
        right[field] = _is_playable(env, field, "environment", checks)
    for index, game in enumerate(config.evaluated):
        field = f"envs.{index}"
        if config.evaluation.envs:
            field = f"evaluation.{field}"
            right[field] = _is_playable(game, field, "evaluations in", checks)
        if right[field]:
            _check_evaluation(config, index, game, checks)
    names = config.population.fixed_opponents
    for index, env in enumerate(config.envs):
        for place, name in enumerate(names if env.num_players > 1 and right[f"envs.{index}"] else []):
            field = f"population.fixed_opponents.{place}"
            checks.result(_check_opponent, config, field, name, env.env_id)
        for name in {*env.seats} & frozen_of(config, "policy").keys() if right[f"envs.{index}"] else ():
            checks.result(_check_opponent, config, f"envs.{index}.policies", name, env.env_id)
    checks.found += [f"opponents of training: {', '.join(sorted(names))}"] if names else []
    return all(right.values())


def _is_playable(env: GameSettings, field: str, what: str, checks: _Checks) -> bool:
    """Return whether a game can be played with its template."""
    found = [checks.result(check, env, field) for check in (_check_game, _check_template)]
    if all(found) and isinstance(env, EnvSettings):
        for name in ("random_opening", "explore"):
            if getattr(env, name):
                checks.result(check_moves_are_told, env.env_id, f"{field}.{name}", "Set 0")
        if env.answers_per_turn > 1:
            checks.result(check_can_be_copied, env.env_id, f"{field}.answers_per_turn")
    if all(found):
        players = counted(env.num_players, "player")
        checks.found.append(f"{what} {env.id}, {players}, template {env.template}")
    return all(found)


def _check_game(env: GameSettings, field: str) -> bool:
    with renaming({f"env.{name}": f"{field}.{name}" for name in ("id", "num_players", "options")}):
        check_playable(env.env_id, env.num_players)
    with own_code(field=f"{field}.id"):
        try:
            tells_moves(env.env_id)
        except EpisodeError as error:
            raise InputError(f"{field}.id", str(error), "Correct it") from error
    return True


def _check_template(env: GameSettings, field: str) -> bool:
    with renaming({"env.template": f"{field}.template"}):
        get_template(env.template)
    return True


def _check_evaluation(config: Config, index: int, game: EvaluatedGameSettings, checks: _Checks) -> None:
    field = "evaluation" if game.opponents is None else f"evaluation.envs.{index}"
    names = evaluation_opponents(config, game)
    for place, name in enumerate(names):
        check = _check_mixture if name == MIXTURE else _check_opponent
        checks.result(check, config, f"{field}.opponents.{place}", name, game.env_id)
    if names:
        checks.found.append(f"opponents in {config.shown(config.label(game))}: {', '.join(sorted(names))}")
    if measures_nash_conv(config, game):
        checks.lines(_check_nash_conv_of, config, game)


def _check_nash_conv_of(config: Config, game: EvaluatedGameSettings) -> list[str]:
    check_nash_conv(game.id)
    check_models_end_answers(game, "evaluation.nash_conv", "Set it to false")
    return [f"NashConv of {config.shown(config.label(game))}"]


def _check_opponent(config: Config, field: str, name: str, env_id: str) -> None:
    with renaming({"opponent": field, "env.id": field}):
        check_opponent(name, env_id, config.frozen)
        if path := frozen_of(config, "policy").get(name):
            make_player(path, env_id, seed=0)


def _check_mixture(config: Config, field: str, name: str, env_id: str) -> None:
    """Raise an InputError unless evaluations can play against the fixed opponents of training."""
    if config.population.sample_mode != "fixed":
        raise InputError(field, f'{name} is for population.sample_mode "fixed"', "Name an opponent")
    if config.evaluation.games_alongside:
        problem = f"{field} is {name}, which has no such games"
        raise InputError("evaluation.games_alongside", problem, "Set 0")
    if name in config.frozen:
        raise InputError(f"frozen.{name}", "is the name of all fixed opponents together", "Rename it")


def _check_algorithms(config: Config, policies: Sequence[str]) -> list[str]:
    found, fix = dict[str, str](), OTHER_ALGORITHM
    for policy in policies:
        ((field, algorithm),) = config.learning.algorithms_of([policy]).items()
        if isinstance(algorithm, PythonAlgorithm) and field not in found:
            found[field] = _check_own_algorithm(algorithm, field, config.learning_of(policy))
    for index, env in enumerate(config.envs):
        for field, algorithm in _algorithms_in(config, env, policies).items():
            if isinstance(algorithm, OverAnswersSettings):
                check_models_end_answers(env, field, fix)
                if not tells_moves(env.env_id):
                    listed = f"and {env.name} (envs.{index}) lists none"
                    raise InputError(field, f"{algorithm.type} learns from legal answers, {listed}", fix)
            if env.explore:
                _check_explores(f"envs.{index}.explore", env, field, algorithm)
    return [*found.values()]


def _check_own_algorithm(algorithm: PythonAlgorithm, field: str, settings: LearningSettings) -> str:
    from sparring.learn.algorithms import build_algorithm  # imports torch
    from sparring.learn.algorithms.trial import try_loss

    untried = try_loss(build_algorithm(algorithm, field), settings, field)
    return f"algorithm {name_of(algorithm.path)}" + (f" ({untried})" if untried else "")


def _algorithms_in(config: Config, env: EnvSettings, policies: Sequence[str]) -> dict[str, Algorithm]:
    """Return the algorithms, by their fields, of the policies that learn from a game."""
    playing = [one for one in policies if one in env.seats or config.league is not None]
    return config.learning.algorithms_of(playing)


def _check_roles_list_answers(config: Config, program: Arena) -> None:
    """Raise an InputError if a policy learns from legal answers, but plays no role with any."""
    roles = {role.id: role for role in roles_with_answers(program)}
    played = {
        policy: [roles[name] for name in names if name in roles]
        for policy, names in roles_of_policies(config, program).items()
    }
    listed = [policy for policy, some in played.items() if some]
    for policy, own in played.items():
        ((field, algorithm),) = config.learning.algorithms_of([policy]).items()
        if not isinstance(algorithm, OverAnswersSettings):
            continue
        if not own:
            others = [f"learning.policies.{name}.algorithm" for name in listed]
            fix = f"Set {' and '.join(others)} instead" if others else OTHER_ALGORITHM
            problem = f"{algorithm.type} learns from legal answers, and the roles of {policy} have none"
            raise InputError(field, problem, fix)
        for role in own:
            if role.stop:
                problem = f"needs answers that a model ends by itself, and {role.id} has stop {role.stop}"
                raise InputError(field, problem, OTHER_ALGORITHM)


def _check_explores(explore: str, env: EnvSettings, field: str, algorithm: Algorithm) -> None:
    """Raise an InputError unless a policy with this algorithm can learn from random legal answers."""
    check_models_end_answers(env, explore, "Set 0")
    learns_from_draws = not isinstance(algorithm, OverAnswersSettings)
    if isinstance(algorithm, PythonAlgorithm):
        from sparring.learn.algorithms import build_algorithm

        learns_from_draws = build_algorithm(algorithm, field).learns_from_draws
    if learns_from_draws:
        problem = f"{field} is {algorithm.type}, which learns from answers that the policy has drawn"
        raise InputError(explore, problem, "Set 0, or choose magnet or all_actions")


def default_seats(env_id: str) -> int:
    """Return the default number of players of an environment: two where that is possible."""
    possible = describe(env_id).players
    return 2 if 2 in possible else possible[0]


def checked_seats(env_id: str, num_players: int | None, template: str | None) -> int:
    """Return the number of seats; raise an InputError unless the game and the template are possible."""
    seats = num_players or default_seats(env_id)
    check_playable(env_id, seats)
    get_template(template or "default")
    return seats


def check_opponent(name: str, env_id: str, frozen: Collection[str] = ()) -> None:
    """Raise an InputError unless ``name`` can play here: a script, ``base``, or one of ``frozen``."""
    known = (*OPPONENTS, *frozen)
    if name not in known:
        raise InputError("opponent", f"there is no opponent {name!r}", f"Use one of {', '.join(known)}")
    if name not in PLAYER_NAMES:
        return
    if not tells_moves(env_id):
        problem = f"{name} cannot play {env_id}, which does not list its legal moves"
        raise InputError("opponent", problem, "Use base as the opponent")
    if name.startswith("optimal") and library_of(env_id) == "openspiel":
        from sparring.envs.solver import check_solvable

        check_solvable(env_id)  # does not solve the game, which can take seconds
    elif name not in ("random", "always-first"):
        make_player(name, env_id, seed=0)


def check_nash_conv(env_id: str) -> None:
    """Raise an InputError unless NashConv can be computed for this environment."""
    if library_of(env_id) != "openspiel":
        problem = f"{env_id} is not an OpenSpiel game"
        raise InputError("evaluation.nash_conv", problem, "Leave it out, or set it to false")
    from sparring.evaluation.nash_conv import states_of

    with renaming({"env.id": "evaluation.nash_conv"}):
        states_of(env_id)


def check_models_end_answers(env: GameSettings, field: str, fix: str) -> None:
    """Raise an InputError if texts end the answers in a game whose legal answers are to be scored or given: a
    legal answer has the token with which a model ends it, or the line feed that is its template's stop.
    """
    stop = env.stop or [one for one in [get_template(env.template).stop] if one not in ("", LINE_END)]
    if stop:
        problem = f"needs answers that a model ends by itself, and in {env.name} stop is {stop}"
        fix += '; for a base model, leave stop out and set template = "fewshot-text"'
        raise InputError(field, problem, fix)


def notes_on(config: Config) -> list[str]:
    """Return what a user who starts a run with this configuration should know, one line each."""
    notes = [*_note_on_lags(config.population), *_note_on_seats(config), *_notes_on_exploration(config)]
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


def _note_on_seats(config: Config) -> list[str]:
    """Return a note if opponents are configured, but every game has at most one seat that is trained."""
    mode, trained = config.population.sample_mode, config.policies
    if mode == "mirror" or not isinstance(config.play, Games) or config.league is not None:
        return []
    if any(sum(policy in trained for policy in env.seats) > 1 for env in config.envs):
        return []
    return [f"population.sample_mode {mode} draws no opponents: no game has two seats that are trained"]


def _notes_on_exploration(config: Config) -> list[str]:
    """Return a note for each algorithm that takes explored answers for those of the policy."""
    return [
        f"with envs.{index}.explore, answers are worth what they earn where trained seats also answer at "
        f'random, and not what the policy alone would earn by them; that needs {field}.values = "tree"'
        for index, env in enumerate(config.envs)
        for field, algorithm in _algorithms_in(config, env, config.policies).items()
        if env.explore and isinstance(algorithm, OverAnswersSettings) and algorithm.values == "returns"
    ]
