"""Critic: a value head on the shared base, which says what a policy can expect before it answers.

The state before an answer is all that the policy knows: the prompt, as the model has read it. With the hidden
state h of the prompt's last token after the last norm, of size D,

    V = r (w . u + b),    u = (h - c) / (s sqrt(D)),

where r is the root mean square of the returns so far (:mod:`sparring.learn.gae`). All that is
learned from is divided by r: values, their targets, and the advantages, so no constant is in units of reward.
When r changes, w and b are multiplied by the old r and divided by the new one, so that V stays (PopArt, van
Hasselt et al. 2016, arXiv 1602.07714).

In a prefix tree the state is a node, so V is computed once wherever games meet, and a state's gradient is the
sum over the answers to it. w and b are 0 at first: then V = 0, and the advantage of a last turn is its
reward, divided by r.

c is the mean of the states of the batch, measured before the update's first step. Prompts of one game differ
in a few tokens, and their states by a few hundredths of their length: without c, a step in w would move all
values alike and hardly tell the states apart, and so would a step of the adapter, which moves all states
together. s is the root mean square of the states' distances from c in the first batch. The division by
s sqrt(D) gives the learning rate a unit: the absolute entries of u add up to about 1 or less, and AdamW moves
each entry of w by about the rate, so a step moves V / r by about the rate at most, whatever the model. s
stays as it is, although the adapter pulls the states apart: mostly by what it will answer, and a greater s
would make the rest, which the outcome also depends on, small.

The advantages come from :mod:`sparring.learn.gae`; the value loss is, with the targets G, and with
values and targets in units of r,

    1/N * sum_i 0.5 (V_i - G_i)^2,    or the maximum of it and 0.5 (clip(V_i, old_i - e, old_i + e) - G_i)^2

with ``value_clip`` = e (the value clip of PPO's implementations; Engstrom et al. 2020, arXiv 2005.12729).

The head learns from this loss at a rate of its own. The loss also reaches the adapter below, times
``value_weight``, as in A2C and PPO with layers that policy and value share. With a weight of 0 only the head
learns from it. Then nothing disturbs the policy's gradient, but the head has to read states that the adapter
keeps changing in favour of the next token alone, and on Kuhn poker it explains much less.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from sparring.config.learning import CriticSettings
from sparring.core import SparringError, TrainingRecord
from sparring.core.types import Answer
from sparring.learn.batch import States, StateSums
from sparring.learn.gae import RunningScale, ValuedTurn, advantages_of
from sparring.learn.policy import PolicyModel

DEFAULTS = CriticSettings()
SMALLEST_SPREAD = 1e-3
"""The least s, as a share of the length of c: states that are alike differ by rounding alone."""


@dataclass(frozen=True)
class Judgement:
    """What an answer is worth, in units of r: its advantage, the value of its state, and the target of it.

    Normalised advantages have no unit.
    """

    advantage: float
    value: float
    target: float


class Critic:
    """The value head of one policy; see the module.

    Args:
        policy: the model whose hidden states the head reads.
        settings: how it learns.

    Attributes:
        weight_D: w.
        bias: b.
        centre_D: c.
        scale: s sqrt(D); 0 before the first batch.
        returns: r, as ``returns.value``.
    """

    def __init__(self, policy: PolicyModel, settings: CriticSettings = DEFAULTS) -> None:
        self.settings = settings
        self.weight_D = Parameter(torch.zeros(policy.hidden_size, device=policy.device))
        self.bias = Parameter(torch.zeros((), device=policy.device))
        self.centre_D = torch.zeros(policy.hidden_size, device=policy.device)
        self.scale = 0.0
        self.returns = RunningScale()

    def parameters(self) -> list[Parameter]:
        """Return the head's weights."""
        return [self.weight_D, self.bias]

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the head's weights, and of the numbers that make u of h and r, by name."""
        tensors = {"weight": self.weight_D, "bias": self.bias, "centre": self.centre_D}
        copies = {name: tensor.detach().clone().cpu() for name, tensor in tensors.items()}
        numbers = {
            "scale": self.scale,
            "mean_square": self.returns.mean_square,
            "batches": self.returns.batches,
        }
        return copies | {name: torch.tensor(one, dtype=torch.float64) for name, one in numbers.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of :meth:`state`. A head that was saved without r is in units of reward."""
        with torch.no_grad():
            self.weight_D.copy_(state["weight"])
            self.bias.copy_(state["bias"])
            self.centre_D.copy_(state["centre"])
        self.scale = float(state["scale"])
        self.returns = RunningScale(float(state.get("mean_square", 0.0)), int(state.get("batches", 0)))

    def centre(self, sums: StateSums) -> None:
        """Take c from the states of the whole batch, and s if it is the first one."""
        self.centre_D.copy_(torch.from_numpy(sums.mean_D))
        if not self.scale:
            length = float(np.linalg.norm(sums.mean_D))
            self.scale = max(sums.spread, SMALLEST_SPREAD * length) * len(sums.mean_D) ** 0.5

    def values(self, hidden_ND: Tensor) -> Tensor:
        """Return value_N of hidden states after the last norm, V / r in float32."""
        hidden_ND = hidden_ND.float()
        read_ND = hidden_ND.detach()
        weight = self.settings.value_weight
        if weight:
            read_ND = read_ND + weight * (hidden_ND - read_ND)
        unit_ND = (read_ND - self.centre_D) / self.scale
        value_N: Tensor = unit_ND @ self.weight_D + self.bias
        return value_N

    def values_of(self, states: States) -> NDArray[np.float32]:
        """Return value_R, V of the states in which R answers were drawn, without a gradient."""
        with torch.no_grad():
            value_R: NDArray[np.float32] = self.values(states.hidden_ND).cpu().numpy()[states.state_of_R]
        return value_R * np.float32(self.returns.value)

    def loss(self, value_R: Tensor, old_R: Tensor, target_R: Tensor) -> Tensor:
        """Return the sum of the value losses of R answers, all in units of r."""
        error_R, clip = (value_R - target_R) ** 2, self.settings.value_clip
        if clip is not None:
            bounded_R = old_R + (value_R - old_R).clamp(-clip, clip)
            error_R = torch.maximum(error_R, (bounded_R - target_R) ** 2)
        return 0.5 * error_R.sum()

    def judge(
        self, answers: Sequence[tuple[TrainingRecord, Answer]], values: Sequence[float]
    ) -> tuple[list[Judgement], dict[str, float]]:
        """Return what each answer is worth, and metrics, and let r take the batch into account.

        The metrics are about the values before the update, in units of reward: ``value_loss``, the mean of
        0.5 (V - G)^2; ``mean_value``; ``explained_variance``, 1 - Var(G - V) / Var(G), which is missing where
        all targets are equal; and ``reward_scale``, the new r.

        Args:
            answers: all answers of an update that are trained on, with their records.
            values: V of each one's state.

        Raises:
            SparringError: a reward or a value is not finite.
        """
        turns = [
            ValuedTurn(record.rollout_id, record.role_id, answer.turn, answer.reward, value)
            for (record, answer), value in zip(answers, values, strict=True)
        ]
        advantage_A = np.array(advantages_of(turns, self.settings.gamma, self.settings.gae_lambda))
        value_A = np.array(values)
        if not np.isfinite(advantage_A).all():
            raise SparringError("a reward of this batch, or a value that the critic gives, is not finite")
        target_A = advantage_A + value_A
        metrics = {"value_loss": float(0.5 * (advantage_A**2).mean()), "mean_value": float(value_A.mean())}
        if target_A.var() > 0:
            metrics["explained_variance"] = float(1 - advantage_A.var() / target_A.var())
        self._take_returns([turn.reward for turn in turns])
        scale = metrics["reward_scale"] = self.returns.value
        advantage_A, value_A, target_A = advantage_A / scale, value_A / scale, target_A / scale
        if self.settings.normalize_advantages:
            advantage_A = (advantage_A - advantage_A.mean()) / (advantage_A.std() + 1e-8)
        found = zip(advantage_A.tolist(), value_A.tolist(), target_A.tolist(), strict=True)
        return [Judgement(*one) for one in found], metrics

    def _take_returns(self, returns: Sequence[float]) -> None:
        """Let r take a batch into account, and keep V as it is."""
        before = self.returns.value
        self.returns.add(returns)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(before / self.returns.value)
