"""Critic: a value head on the shared base, which says what a policy can expect before it answers.

The state before an answer is all that the policy knows: the prompt, as the model has read it. With the hidden
state h of the prompt's last token after the last norm, of size D,

    V = w . h / (|h| sqrt(D)) + b.

In a prefix tree the state is a node, so V is computed once wherever games meet, and a state's gradient is the
sum over the answers to it. w and b are 0 at first: then V = 0, and the advantage is the reward.

The advantages come from :mod:`selfplay.learning.gae`; the value loss is, with the targets G,

    1/N * sum_i 0.5 (V_i - G_i)^2,    or the maximum of it and 0.5 (clip(V_i, old_i - c, old_i + c) - G_i)^2

with ``value_clip`` = c (the value clip of PPO's implementations; Engstrom et al. 2020, arXiv 2005.12729).

The head learns from this loss at a rate of its own. h is divided such that the sum of its absolute entries is
at most 1: a step of AdamW moves each entry of w by about the rate, and so V by no more than about that. So
the rate is in units of reward, whatever the model.

The adapter below the head learns from the value loss only as far as ``value_weight`` says, by default not at
all. A2C and PPO usually let the loss through to the layers that both share, which learn everything from the
rewards. Here the base has learned to read before, and the few weights of an adapter are what plays: AdamW and
the clip of the gradient's norm would make them follow whichever of the two losses is larger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from selfplay.core import TrainingRecord
from selfplay.learning.gae import Turn, advantages_of
from selfplay.learning.policy import PolicyModel

PlacedValue = tuple[int, float]
"""An answer's place among all answers of an update's records, and the value of its state."""


@dataclass(frozen=True)
class Target:
    """What an answer's state was worth before the update's first step, and what it is to be worth."""

    advantage: float
    old_value: float
    value: float


class Critic:
    """The value head of one policy; see the module.

    Args:
        policy: the model whose hidden states the head reads.
        gamma: discount of a turn's value and of later rewards.
        gae_lambda: 0 trusts the next turn's value, 1 only the rewards.
        value_learning_rate: learning rate of the head's AdamW, constant, in units of reward.
        value_weight: weight of the value loss in the adapter's gradient.
        value_clip: how far the loss lets a value move in one update, in units of reward; ``None`` for any
            distance.
        normalize_advantages: subtract the mean of the batch from the advantages and divide them by its
            standard deviation.

    Attributes:
        weight_D: w.
        bias: b.
    """

    def __init__(
        self,
        policy: PolicyModel,
        *,
        gamma: float = 1.0,
        gae_lambda: float = 0.95,
        value_learning_rate: float = 0.05,
        value_weight: float = 0.0,
        value_clip: float | None = None,
        normalize_advantages: bool = False,
    ) -> None:
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.value_learning_rate = value_learning_rate
        self.value_weight = value_weight
        self.value_clip = value_clip
        self.normalize_advantages = normalize_advantages
        self.weight_D = Parameter(torch.zeros(policy.hidden_size, device=policy.device))
        self.bias = Parameter(torch.zeros((), device=policy.device))

    def parameters(self) -> list[Parameter]:
        """Return the head's weights."""
        return [self.weight_D, self.bias]

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the head's weights by name."""
        return {"weight": self.weight_D.detach().clone().cpu(), "bias": self.bias.detach().clone().cpu()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of :meth:`state`."""
        with torch.no_grad():
            self.weight_D.copy_(state["weight"])
            self.bias.copy_(state["bias"])

    def values(self, hidden_ND: Tensor) -> Tensor:
        """Return value_N of hidden states after the last norm, in float32."""
        hidden_ND = hidden_ND.float()
        fixed_ND = hidden_ND.detach()
        if self.value_weight:
            fixed_ND = fixed_ND + self.value_weight * (hidden_ND - fixed_ND)
        unit_ND = torch.nn.functional.normalize(fixed_ND, dim=-1)
        value_N: Tensor = unit_ND @ self.weight_D / len(self.weight_D) ** 0.5 + self.bias
        return value_N

    def loss(self, value_R: Tensor, old_R: Tensor, target_R: Tensor) -> Tensor:
        """Return the sum of the value losses of R answers."""
        error_R = (value_R - target_R) ** 2
        if self.value_clip is not None:
            bounded_R = old_R + (value_R - old_R).clamp(-self.value_clip, self.value_clip)
            error_R = torch.maximum(error_R, (bounded_R - target_R) ** 2)
        return 0.5 * error_R.sum()

    def targets(
        self, records: Sequence[TrainingRecord], values: Iterable[PlacedValue]
    ) -> tuple[dict[int, Target], dict[str, float]]:
        """Return the targets of an update by an answer's place, and metrics.

        Metrics, all about V before the update: ``value_loss``, the mean of 0.5 (V - G)^2; ``mean_value``; and
        ``explained_variance``, 1 - Var(G - V) / Var(G), which is missing where all targets are equal.

        Args:
            records: all records of the update, of all learners and steps.
            values: the values of the answers that are trained on.
        """
        answers = [(record, answer) for record in records for answer in record.answers]
        places, turns = list[int](), list[Turn]()
        for place, value in sorted(values):
            record, answer = answers[place]
            places.append(place)
            turns.append(Turn(record.rollout_id, record.role_id, answer.turn, answer.reward, value))
        advantage_R = torch.tensor(advantages_of(turns, self.gamma, self.gae_lambda), dtype=torch.float64)
        value_R = torch.tensor([turn.value for turn in turns], dtype=torch.float64)
        target_R = advantage_R + value_R
        metrics = {"value_loss": float(0.5 * (advantage_R**2).mean()), "mean_value": float(value_R.mean())}
        spread = float(target_R.var(correction=0))
        if spread > 0:
            metrics["explained_variance"] = 1 - float(advantage_R.var(correction=0)) / spread
        if self.normalize_advantages:
            deviation = advantage_R.std(correction=0)
            advantage_R = (advantage_R - advantage_R.mean()) / (deviation + 1e-8)
        numbers = zip(advantage_R.tolist(), value_R.tolist(), target_R.tolist(), strict=True)
        return {place: Target(*three) for place, three in zip(places, numbers, strict=True)}, metrics
