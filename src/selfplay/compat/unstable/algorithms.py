"""Algorithms under the module name that UnstableBaselines uses; ``learning.algorithms`` defines them."""

from selfplay.learning.algorithms import BaseAlgo, Reinforce

__all__ = ["BaseAlgo", "Reinforce"]
