"""The opponents of evaluations, the configured ones or those that an environment allows; and how answers that
nobody learns from are drawn."""

from sparring.config import Config
from sparring.config.play import EvaluatedGameSettings
from sparring.core import CallSettings, InputError
from sparring.core.adapters import BASE
from sparring.engine.api_models import api_client, is_adapter, is_api_model, refuse_credentials
from sparring.envs import catalog
from sparring.envs.catalog import library_of
from sparring.envs.scripted import PLAYER_NAMES
from sparring.envs.textarena_moves import family_of
from sparring.learn.own_sampling import drawing
from sparring.run.given_adapters import frozen_of

OPPONENTS = (*PLAYER_NAMES, BASE)
MIXTURE = "mixture"
"""In evaluations: the fixed opponents of training, one of them in each game, by their weights."""


def evaluation_opponents(config: Config, env: EvaluatedGameSettings) -> list[str]:
    """Return the opponents in the matches of ``env``; a game for one player has none."""
    if env.num_players == 1:
        return []
    given = config.evaluation.opponents if env.opponents is None else env.opponents
    return [default_opponent(env.env_id)] if given is None else list(given)


def lasting_opponents(config: Config, env: EvaluatedGameSettings) -> list[str]:
    """Return the opponents in the matches of ``env`` that stay the same.

    These are scripts, ``base``, adapters and policies in files, but no model behind an API.
    """
    lasting = {*OPPONENTS, *frozen_of(config, "adapter"), *frozen_of(config, "policy")}
    return [name for name in evaluation_opponents(config, env) if name in lasting]


def all_evaluation_opponents(config: Config) -> list[str]:
    """Return the opponents in the matches of any environment, each once."""
    return list(dict.fromkeys(name for env in config.evaluated for name in evaluation_opponents(config, env)))


def measures_nash_conv(config: Config, env: EvaluatedGameSettings) -> bool:
    """Return whether NashConv of ``env`` is computed."""
    return config.evaluation.nash_conv if env.nash_conv is None else env.nash_conv


def default_opponent(env_id: str) -> str:
    """Return ``random`` where the legal moves are known; elsewhere ``base``, the untrained model."""
    return "random" if tells_moves(env_id) else BASE


def tells_moves(env_id: str) -> bool:
    """Whether legal moves are known.

    TextArena is slow to import, but its classes are named like its ids, so the id alone decides.
    """
    library = library_of(env_id)
    if library in ("python", "environment"):
        return catalog.tells_moves(env_id)
    return library == "openspiel" or family_of(f"{env_id.split('-v', 1)[0]}Env") is not None


def why_base(env_id: str) -> str:
    """Return one line for a user who gave no opponent and gets ``base``."""
    return f"{env_id} does not list its legal moves, so it is evaluated against base, not random"


def check_opponent_name(name: str, field: str) -> None:
    """Raise an InputError unless an opponent of this name can play here.

    An opponent is scripted (``random``, ``optimal``), the untrained model (``base``), the directory of an
    adapter, or a model behind an API whose key is set.
    """
    if name in OPPONENTS or is_adapter(name):
        return
    refuse_credentials(name, field)
    if not is_api_model(name):
        known = ", ".join(OPPONENTS)
        raise InputError(
            field, f"there is no opponent {name!r}", f"Use {known}, an adapter's directory or vendor/model"
        )
    try:
        api_client(name)
    except InputError as error:
        local = "or name an opponent that plays here: random or base"
        raise InputError(
            field, f"{name} needs {error.field}, which {error.problem}", f"Set it, {local}"
        ) from error


def evaluation_calls(config: Config, game: EvaluatedGameSettings) -> CallSettings:
    """Return the temperature and the sampling of the model in the matches of a game, as far as they are set.

    Raises InputError: its model does not say how it is sampled.
    """
    evaluation = config.evaluation
    field, settings = "evaluation.sampling", evaluation.sampling
    if game.sampling is not None:
        place = [one.key for one in config.evaluation.envs].index(game.key)
        field, settings = f"evaluation.envs.{place}.sampling", game.sampling
    temperature = evaluation.temperature if game.temperature is None else game.temperature
    return CallSettings(temperature).over(drawing(settings, config.model.name, field))


def opponent_calls(config: Config) -> CallSettings:
    """Return those of models that are not in training, in games of training and of evaluations; errors are as
    in :func:`evaluation_calls`."""
    return drawing(config.population.sampling, config.model.name, "population.sampling")
