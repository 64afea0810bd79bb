"""Algorithms, each in a file of its own: policy gradients on sampled tokens, and losses on given answers.

``config.algorithms`` has the table of them.
"""

from importlib import import_module

from sparring.config.algorithms import Algorithm, PythonAlgorithm
from sparring.core.own_classes import build_own, own_class
from sparring.learn.algorithms.base import BaseAlgo
from sparring.learn.algorithms.reinforce import Reinforce
from sparring.learn.algorithms.token_loss import TokenLoss

__all__ = ["BaseAlgo", "Reinforce", "TokenLoss", "build_algorithm"]


def build_algorithm(settings: Algorithm, field: str = "learning.algorithm") -> BaseAlgo:
    """Build the algorithm of one learner: the package's, or one of the user's own.

    Args:
        settings: the algorithm's settings.
        field: the field of the configuration that names it, for errors.

    Raises:
        InputError: an algorithm of the user's own cannot be built.
    """
    algorithm: BaseAlgo
    if isinstance(settings, PythonAlgorithm):
        kind = own_class(settings.path, BaseAlgo, f"{field}.path")
        algorithm = build_own(kind, field, settings.options)
        algorithm.regulariser_ends = settings.regulariser_ends
    else:
        module, _, name = settings.made_by.partition(":")
        algorithm = getattr(import_module(f"{__name__}.{module}"), name)(settings)
    return algorithm
