"""Pace: a learning rate that falls until a step goes a given share of the way to its target.

AdamW's step has about the same length however near the target is. Where all states of a game turn together,
as in rock, paper, scissors, such a step goes past its target, and play circles for good; where a game has
hundreds of states, the same rate takes each of them a little of the way. So the rate follows what steps did.
Let p be the probabilities of legal answers before a step, t their targets, p' what the step made of p, and w
the weights of the loss. The share of the way is

    s = sum w (t - p)(p' - p) / sum w (t - p)^2

and after each measurement the rate is multiplied by

    (aim / S)^``SPEED``,    aim / S at least 1 / e and at most e

where S is the mean of s over about the last two steps, and s counts as at most ``MOST`` on either side.
It never exceeds the learning rate that was set, and never falls below ``LEAST`` of it.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from sparring.learn.legal_answers import FloatArray

SPEED = 0.3
DECAY = 0.5
"""What earlier steps count for in the mean, for each later one."""
MOST = 2.0
"""The largest share that counts, so that one step which passed its target by far does not decide alone."""
LEAST = 0.01
"""The least that the rate falls to, as a share of what was set."""
STATE = "pace"


@dataclass
class Pace:
    """The share ``factor`` of the set learning rate, the mean S, and how many steps it is of."""

    factor: float = 1.0
    mean: float = 0.0
    steps: int = 0

    def follow(self, share: float, aim: float) -> None:
        """Take into account what share of the way a step went."""
        decay = min(DECAY, self.steps / (self.steps + 1))
        self.mean = decay * self.mean + (1 - decay) * min(max(share, -MOST), MOST)
        self.steps += 1
        change = min(max(math.log(aim / max(self.mean, aim / math.e)), -1.0), 1.0)
        self.factor = min(max(self.factor * math.exp(SPEED * change), LEAST), 1.0)

    def state(self) -> dict[str, Tensor]:
        """Return it as a tensor by name; nothing before the first step."""
        return {STATE: torch.tensor(astuple(self), dtype=torch.float64)} if self.steps else {}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "Pace":
        """Return what :meth:`state` was of."""
        if STATE not in state:
            return cls()
        factor, mean, steps = state[STATE].tolist()
        return cls(factor, mean, int(steps))


@dataclass(frozen=True)
class Stride:
    """The probabilities p and targets t of the legal answers before a step, and their weights."""

    before_A: FloatArray
    target_A: FloatArray
    weight_A: FloatArray

    def share(self, after_A: FloatArray) -> float:
        """Return s, the share of the way that the step went; 0 where there was no way to go."""
        wanted_A = self.target_A - self.before_A
        weighted_A = self.weight_A * wanted_A
        way = float(weighted_A @ wanted_A)
        return float(weighted_A @ (after_A - self.before_A)) / way if way else 0.0
