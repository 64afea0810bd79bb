"""How answers are drawn that nobody learns from, as a run's configuration says."""

from sparring.config import Config
from sparring.config.play import EvaluatedGameSettings
from sparring.core import CallSettings
from sparring.learn.own_sampling import drawing


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
