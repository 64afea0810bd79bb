"""Algorithms, where seed 000 has them. ``learning.algorithms`` is their home."""

from selfplay.learning.algorithms import BaseAlgo, Reinforce

__all__ = ["BaseAlgo", "Reinforce"]
