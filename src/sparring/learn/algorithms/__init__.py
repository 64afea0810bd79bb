"""Algorithms, each in a file of its own; ``config.algorithms`` has the table of them."""

from importlib import import_module

from sparring.config.algorithms import Algorithm, PythonAlgorithm
from sparring.core.own_code import build_own, own_class
from sparring.learn.algorithms.base import BaseAlgo
from sparring.learn.algorithms.reinforce import Reinforce
from sparring.learn.algorithms.token_loss import TokenLoss

__all__ = ["BaseAlgo", "Reinforce", "TokenLoss", "build_algorithm"]


def build_algorithm(settings: Algorithm, field: str = "learning.algorithm") -> BaseAlgo:
    """Build one learner's algorithm; InputError, on ``field``, if the user's own cannot be built."""
    algorithm: BaseAlgo
    if isinstance(settings, PythonAlgorithm):
        kind = own_class(settings.path, BaseAlgo, f"{field}.path")
        algorithm = build_own(kind, field, settings.options)
        algorithm.regulariser_ends = settings.regulariser_ends
    else:
        module, _, name = settings.made_by.partition(":")
        algorithm = getattr(import_module(f"{__name__}.{module}"), name)(settings)
    return algorithm
