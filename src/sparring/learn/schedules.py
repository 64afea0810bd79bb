"""What changes with the updates: rates, and adapters that follow a policy's: averages and copies.

After update v of the policy, if v is a multiple of ``every``, the follower's weights become

    follower <- d * follower + (1 - d) * policy,    d = min(``decay``, n / (n + ``warmup``)),  n = v / every

With ``decay`` 0 this is a copy every K updates; with ``every`` 1 it is Polyak averaging. Between them is a
reference that is mixed with the policy now and then (TR-DPO, Gorbatovski et al. 2024, arXiv 2404.09656).
While n / (n + ``warmup``) is below ``decay``, move m has a weight in proportion to about m^(``warmup`` - 1):
at 1 the follower is the plain mean of all weights so far, and the higher ``warmup``, the sooner it forgets
those from before training (Shamir and Zhang 2013, arXiv 1212.1824, call it polynomial-decay averaging).
"""

import math
from dataclasses import dataclass

import torch

from sparring.learn.policy import PolicyModel


@dataclass(frozen=True)
class Schedule:
    """A value that goes from ``start`` to ``end`` in ``steps`` updates, by default along a cosine.

    A geometric one goes along a cosine too if one of its ends is 0. A linear one begins to move after the
    warm-up, and would reach ``end`` at the update after the last. The value rises linearly over the first
    ``warmup`` updates.
    """

    start: float
    end: float
    steps: int
    warmup: int = 0
    geometric: bool = False
    linear: bool = False

    def at(self, step: int) -> float:
        """Return the value at update ``step``, counted from 0."""
        fraction = min(step / max(self.steps - 1, 1), 1.0)
        if self.geometric and self.start > 0 and self.end > 0:
            value = self.start * (self.end / self.start) ** fraction
        elif self.linear:
            left = (self.steps - step) / max(self.steps - self.warmup, 1)
            value = self.end + (self.start - self.end) * min(max(left, 0.0), 1.0)
        else:
            value = self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * fraction))
        return float(value * min(1.0, (step + 1) / (self.warmup + 1)))


@dataclass(frozen=True)
class Follower:
    """The adapter ``name`` that follows the adapter ``leader``; see the module."""

    model: PolicyModel
    leader: str
    name: str
    decay: float
    every: int = 1
    warmup: int = 1

    def start(self) -> None:
        """Create the adapter with the leader's weights, or give it these."""
        self.model.load_adapter_state(self.model.adapter_state(self.leader), self.name)

    def follow(self, version: int) -> None:
        """Move after the leader's update ``version``, counted from 1."""
        if version % self.every:
            return
        moves = version // self.every
        decay = min(self.decay, moves / (moves + self.warmup))
        followers = self.model.adapter_parameters(self.name)
        with torch.no_grad():
            for follower, weight in zip(followers, self.model.adapter_parameters(self.leader), strict=True):
                follower.lerp_(weight, 1 - decay)
