"""Build the algorithm that the configuration describes: the package's, or one of the user's own."""

from typing import TYPE_CHECKING

from selfplay.config.algorithms import Algorithm, PythonAlgorithm
from selfplay.core.own_classes import build_own, own_class

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo

OF_LEARNER = {"type", "regulariser_weight", "regulariser_weight_end"}
"""The fields that are not arguments of the algorithm; all others have the names of its arguments."""


def build_algorithm(settings: Algorithm, field: str = "learning.algorithm") -> "BaseAlgo":
    """Build the algorithm of one learner.

    Args:
        settings: the algorithm and its arguments.
        field: the field of the configuration that names it, for errors.

    Raises:
        InputError: an algorithm of the user's own cannot be built.
    """
    from selfplay.learning.algorithms import (
        A2c,
        AllActions,
        BaseAlgo,
        Cispo,
        Dppo,
        Gspo,
        Magnet,
        Ppo,
        Reinforce,
        Sapo,
    )

    if isinstance(settings, PythonAlgorithm):
        kind: type[BaseAlgo] = own_class(settings.path, BaseAlgo, f"{field}.path")
        return build_own(kind, field, settings.options)
    by_type: dict[str, type[BaseAlgo]] = {
        "reinforce": Reinforce,
        "a2c": A2c,
        "ppo": Ppo,
        "gspo": Gspo,
        "cispo": Cispo,
        "sapo": Sapo,
        "dppo": Dppo,
        "magnet": Magnet,
        "all_actions": AllActions,
    }
    return by_type[settings.type](**settings.model_dump(exclude=OF_LEARNER))
