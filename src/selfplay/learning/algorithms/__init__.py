"""Policy-gradient algorithms, each in a file of its own."""

from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.algorithms.reinforce import Reinforce

__all__ = ["BaseAlgo", "Reinforce"]
