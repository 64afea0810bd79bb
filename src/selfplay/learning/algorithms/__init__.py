"""Algorithms, each in a file of its own: policy gradients on sampled tokens, and losses on given answers."""

from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.algorithms.dpo import Dpo
from selfplay.learning.algorithms.reinforce import Reinforce
from selfplay.learning.algorithms.sft import Sft

__all__ = ["BaseAlgo", "Dpo", "Reinforce", "Sft"]
