"""Build the algorithm that the configuration describes: the package's, or one of the user's own."""

from typing import TYPE_CHECKING

from selfplay.config.algorithms import (
    A2cSettings,
    Algorithm,
    AllActionsSettings,
    CispoSettings,
    DppoSettings,
    GspoSettings,
    MagnetSettings,
    PpoSettings,
    PythonAlgorithm,
    ReinforceSettings,
    SapoSettings,
)
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

    options = settings.model_dump(exclude=OF_LEARNER)
    match settings:
        case ReinforceSettings():
            return Reinforce(**options)
        case A2cSettings():
            return A2c(**options)
        case PpoSettings():
            return Ppo(**options)
        case GspoSettings():
            return Gspo(**options)
        case CispoSettings():
            return Cispo(**options)
        case SapoSettings():
            return Sapo(**options)
        case DppoSettings():
            return Dppo(**options)
        case MagnetSettings():
            return Magnet(**options)
        case AllActionsSettings():
            return AllActions(**options)
        case PythonAlgorithm():
            kind: type[BaseAlgo] = own_class(settings.path, BaseAlgo, f"{field}.path")
            return build_own(kind, field, settings.options)
