"""Build the algorithm that the configuration describes: the package's, or one of the user's own."""

from typing import TYPE_CHECKING

from selfplay.config.learning import Algorithm, PythonAlgorithm
from selfplay.core.own_classes import build_own, own_class

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo


def build_algorithm(settings: Algorithm) -> "BaseAlgo":
    """Build the algorithm of one learner.

    Raises:
        InputError: an algorithm of the user's own cannot be built.
    """
    from selfplay.learning.algorithms import BaseAlgo, Reinforce

    if isinstance(settings, PythonAlgorithm):
        kind: type[BaseAlgo] = own_class(settings.path, BaseAlgo, "learning.algorithm.path")
        return build_own(kind, "learning.algorithm", settings.options)
    return Reinforce(settings.regulariser, settings.kl_weight, settings.max_importance_weight)
