"""Algorithms, each in a file of its own: policy gradients on sampled tokens, and losses on given answers."""

from selfplay.learning.algorithms.a2c import A2c
from selfplay.learning.algorithms.all_actions import AllActions
from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.algorithms.cispo import Cispo
from selfplay.learning.algorithms.dpo import Dpo
from selfplay.learning.algorithms.dppo import Dppo
from selfplay.learning.algorithms.gspo import Gspo
from selfplay.learning.algorithms.magnet import Magnet
from selfplay.learning.algorithms.ppo import Ppo
from selfplay.learning.algorithms.reinforce import Reinforce
from selfplay.learning.algorithms.sapo import Sapo
from selfplay.learning.algorithms.sft import Sft
from selfplay.learning.algorithms.token_loss import TokenLoss

__all__ = [
    "A2c",
    "AllActions",
    "BaseAlgo",
    "Cispo",
    "Dpo",
    "Dppo",
    "Gspo",
    "Magnet",
    "Ppo",
    "Reinforce",
    "Sapo",
    "Sft",
    "TokenLoss",
]
