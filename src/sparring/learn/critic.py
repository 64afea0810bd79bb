"""Critic: a value head on the shared base, which says what a policy can expect before it answers.

The state before an answer is the prompt, as the model has read it. With the hidden state h of the prompt's
last token after the last norm, of size D,

    V = r (w . u + b),    u = (h - c) / (s sqrt(D)),

where r is the root mean square of the returns so far. Values, their targets and advantages are divided by r,
so no constant is in units of reward. When r changes, w and b are multiplied by the old r and divided by the
new one, so that V stays (PopArt, van Hasselt et al. 2016, arXiv 1602.07714). w and b are 0 at first.

c is the mean of the states of the batch, measured before the update's first step; s is the root mean square
of the states' distances from c in the first batch. Prompts of one game differ by a few hundredths of their
states' length: without c, a step in w would move all values alike. The absolute entries of u add up to about
1, and AdamW moves each entry of w by about the learning rate, so a step moves V / r by about the rate at
most.

With the value V_t of the state before turn t of a role in a rollout and the reward r_t of the turn,

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = sum_k (gamma lambda)^k delta_{t+k}

(generalised advantage estimation; Schulman et al. 2016, arXiv 1506.02438, equations 11 and 16). The value's
target is A_t + V_t. A record gives each answer a reward R_t, the outcome for its role and what its own
transforms add, so r_t = R_t - R_{t+1}, and r_T = R_T at the end. With lambda < 1, A_t contains (1 - lambda)
times the opposite of what the next turn's transforms added beyond V_{t+1}; it is 0 in the mean once the
critic expects it. A turn whose next one is missing, because a buffer draws single steps or a record is cut,
counts as the last: its target is R_t.

The value loss is, with the targets G, and with values and targets in units of r,

    1/N * sum_i 0.5 (V_i - G_i)^2,    or the maximum of it and 0.5 (clip(V_i, old_i - e, old_i + e) - G_i)^2

with ``value_clip`` = e (the value clip of PPO's implementations; Engstrom et al. 2020, arXiv 2005.12729). The
head learns from it at a rate of its own. It also reaches the adapter below, times ``value_weight``. With a
weight of 0 only the head learns from it, and on Kuhn poker explains much less.

:class:`RunningScale` is the root mean square, over the batches so far, of what a game pays, by which critics
divide rewards, as VecNormalize does, and losses over legal answers divide advantages. No mean is subtracted,
so a game that nearly always pays the same does not get a tiny scale. After batch n with mean square m_n,

    m <- d m + (1 - d) m_n,    d = min(0.99, (n - 1) / n),    scale = sqrt(m)
"""

import math
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
from sparring.learn.batch import Batch
from sparring.learn.policy import PolicyModel


@dataclass(frozen=True)
class ValuedTurn:
    """An answer as a time step; one without a ``rollout_id`` is a trajectory of its own."""

    rollout_id: str
    role_id: str
    number: int
    reward: float
    value: float


def advantages_of(turns: Sequence[ValuedTurn], gamma: float, gae_lambda: float) -> list[float]:
    """Return A_t of each turn, in the order of ``turns``, which may be any."""
    place_of = {
        (turn.rollout_id, turn.role_id, turn.number): place
        for place, turn in enumerate(turns)
        if turn.rollout_id
    }
    advantages = [0.0] * len(turns)
    for place in sorted(range(len(turns)), key=lambda place: -turns[place].number):
        turn = turns[place]
        following = place_of.get((turn.rollout_id, turn.role_id, turn.number + 1))
        if following is None:
            advantages[place] = turn.reward - turn.value
        else:
            after = turns[following]
            delta = turn.reward - after.reward + gamma * after.value - turn.value
            advantages[place] = delta + gamma * gae_lambda * advantages[following]
    return advantages


DECAY = 0.99


@dataclass
class RunningScale:
    """The scale of the module: m, in squared units of reward, and the number of batches n."""

    mean_square: float = 0.0
    batches: int = 0

    @property
    def value(self) -> float:
        """The scale, in units of reward; 1 before the first batch."""
        return self.mean_square**0.5 if self.batches else 1.0

    def add(self, numbers: Sequence[float], least: float = 0.0) -> None:
        """Take a batch into account, unless its root mean square is not above ``least``.

        Raises SparringError if the mean square is not finite.
        """
        square = sum(one * one for one in numbers) / len(numbers)
        if not math.isfinite(square):
            raise SparringError("a reward or an advantage of this batch is not finite, or its square is not")
        if square**0.5 <= least:
            return
        decay = min(DECAY, self.batches / (self.batches + 1))
        self.mean_square = decay * self.mean_square + (1 - decay) * square
        self.batches += 1


DEFAULTS = CriticSettings()
SMALLEST_SPREAD = 1e-3
"""The least s, as a share of the length of c: states that are alike differ by rounding alone."""


class Critic:
    """The value head of one policy: ``weight_D`` is w, ``bias`` b, ``centre_D`` c, ``returns.value`` r.

    ``scale`` is s sqrt(D); 0 before the first batch.
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
        """Restore the state of :meth:`state`."""
        with torch.no_grad():
            self.weight_D.copy_(state["weight"])
            self.bias.copy_(state["bias"])
            self.centre_D.copy_(state["centre"])
        self.scale = float(state["scale"])
        self.returns = RunningScale(float(state.get("mean_square", 0.0)), int(state.get("batches", 0)))

    def centre(self, sums: NDArray[np.float64]) -> None:
        """Take c from the ``Batch.state_sums`` of the whole batch, and s if it is the first one."""
        count, squares = sums[:2].tolist()
        mean_D = sums[2:] / count
        self.centre_D.copy_(torch.from_numpy(mean_D))
        if not self.scale:
            spread = max(squares / count - float(mean_D @ mean_D), 0.0) ** 0.5
            least = SMALLEST_SPREAD * float(np.linalg.norm(mean_D))
            self.scale = max(spread, least) * len(mean_D) ** 0.5

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

    def values_of(self, batch: Batch) -> NDArray[np.float32]:
        """Return value_R, V of the states in which R answers were drawn, without a gradient."""
        with torch.no_grad():
            value_R: NDArray[np.float32] = self.values(batch.hidden_ND).cpu().numpy()[batch.state_of_R]
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
    ) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Let r take the batch into account; return what answers are worth, given V, and metrics.

        The rows of the array are the advantages, the values and their targets, in units of r.

        The metrics are about the values before the update, in units of reward: ``value_loss``, the mean of
        0.5 (V - G)^2; ``mean_value``; ``explained_variance``, 1 - Var(G - V) / Var(G), which is missing where
        all targets are equal; and ``reward_scale``, the new r. Raises SparringError if a reward or a value is
        not finite.
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
        before = self.returns.value
        self.returns.add([turn.reward for turn in turns])
        scale = metrics["reward_scale"] = self.returns.value
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(before / scale)
        advantage_A, value_A, target_A = advantage_A / scale, value_A / scale, target_A / scale
        if self.settings.normalize_advantages:
            advantage_A = (advantage_A - advantage_A.mean()) / (advantage_A.std() + 1e-8)
        return np.stack([advantage_A, value_A, target_A]), metrics
