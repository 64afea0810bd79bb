"""Policy-gradient algorithms: one a file."""

from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.algorithms.reinforce import Reinforce

__all__ = ["BaseAlgo", "Reinforce"]
