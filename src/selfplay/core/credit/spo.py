"""SPO: rewards relative to a baseline that is tracked for each position."""

from dataclasses import dataclass, field
from itertools import islice
from math import fsum, sqrt
from typing import Any

from selfplay.core.credit.base import CreditAssigner, RolloutStepKey, trained_rollouts
from selfplay.core.credit.positions import Position, drawn_answer, position_of
from selfplay.core.types import GenerateResult, Step

MAX_POSITIONS = 100_000
"""Number of positions that are remembered; the least recently used are forgotten."""


@dataclass(frozen=True)
class _Sample:
    """A trained step: where it stands, its reward, and its seat's mean reward in other rollouts."""

    key: RolloutStepKey
    position: str | None
    step: Step
    reward: float
    mean_of_others: float


@dataclass
class SPOCredit(CreditAssigner):
    """Single-stream policy optimisation: A = R - v with a tracked v (Xu and Ding 2025, arXiv 2509.13232).

    A position is what a policy is asked in a role: the ``prompt_token_ids`` of a step of one role, played by
    one policy, in episodes of one type. Each position has v = S / N, and each step has an advantage of its
    own. All samples of a batch read v before any of them changes it. Then for each position of the batch,
    once,

        S <- rho * S + sum of the rewards of its samples,   N <- rho * N + their number,
        rho = 2^(-D / half_life), but at least 0.875 and at most 0.96.

    So v is the mean of about the last 8 to 25 batches with this position. D says how far the policy has moved
    there, in nats per token: the mean, over the samples whose answer was drawn there before, of the absolute
    change of the answer's log-probability since it was last drawn, divided by the answer's number of tokens.
    Without such a sample D is 0, and rho is 0.96.

    At a position without a v, the baseline is the mean reward of the policy in this role, in other rollouts
    of this batch of the same episode type, each counted once; without any, it is 0. A step without token ids
    has no v, and none is tracked for it.

    Finally all advantages of the batch are divided by their standard deviation about 0, sqrt(mean of A^2). If
    it is at most 1e-8, all advantages are 0.

    The bounds of rho and ``half_life`` are those of the authors' code (volcengine/verl, ``recipe/spo``). This
    class differs from it in five ways:

    - Their v is the mean of a Beta distribution, for rewards of 0 or 1: alpha <- rho * alpha + R and
      beta <- rho * beta + 1 - R. That is S = alpha and N = alpha + beta. A weighted mean does the same for
      all rewards, also negative ones.
    - Their v begins with eight answers of the untrained model to each prompt, which weigh as 8 samples do.
      The positions of a game are not known before it is played, so here v begins without an estimate.
    - Their batch asks each prompt once. Here a position may have many samples in a batch, for one rho.
    - Their D is the mean absolute change of the tokens of a prompt's last answer, which the model reads once
      more when the prompt comes back. Here no answer is read again: only answers that are drawn again say how
      far the policy has moved, and the changes of an answer's tokens are added up before their absolute value
      is taken. That is at most as much, and as much if all tokens become likelier or all less likely.
    - Their advantages are (A - mean) / (deviation + 1e-8). Here v is the only baseline: centring would also
      take from each position what v did not expect at the others, and everything from a batch whose samples
      are equally surprising. The deviation is about 0 for the same reason: that about the mean can be far
      smaller than the advantages.

    Args:
        half_life: the change of log-probabilities, in nats per token, at which a position would forget half
            of what it remembers if rho had no bounds.
    """

    half_life: float = 0.06
    positions: dict[str, Position] = field(default_factory=dict)

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        """Return each step's advantage, and update the positions."""
        samples = _samples(results)
        advantages = [sample.reward - self._baseline(sample) for sample in samples]
        self._remember(samples)
        scale = sqrt(fsum(value * value for value in advantages) / max(len(advantages), 1))
        return {
            sample.key: advantage / scale if scale > 1e-8 else 0.0
            for sample, advantage in zip(samples, advantages, strict=True)
        }

    def _baseline(self, sample: _Sample) -> float:
        if sample.position is None or sample.position not in self.positions:
            return sample.mean_of_others
        return self.positions[sample.position].value

    def _remember(self, samples: list[_Sample]) -> None:
        by_position: dict[str, list[_Sample]] = {}
        for sample in samples:
            if sample.position is not None:
                by_position.setdefault(sample.position, []).append(sample)
        for name in sorted(by_position):  # the same for every order within a batch
            position = self.positions.pop(name, None) or Position()
            rewards = [sample.reward for sample in by_position[name]]
            drawn = [answer for sample in by_position[name] if (answer := drawn_answer(sample.step))]
            position.add(rewards, drawn, self.half_life)
            self.positions[name] = position
        for name in list(islice(self.positions, max(0, len(self.positions) - MAX_POSITIONS))):
            del self.positions[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the positions, the most recently used last."""
        return {"positions": [[name, one.to_state()] for name, one in self.positions.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.positions = {name: Position.from_state(one) for name, one in state["positions"]}


def _samples(results: list[GenerateResult]) -> list[_Sample]:
    """Return the trained steps of all levels."""
    rewards: dict[tuple[str, str, str], list[float]] = {}
    for rollout in trained_rollouts(results):
        for role_id, policy in {(step.role_id, step.policy) for step in rollout.steps if step.policy}:
            rewards.setdefault((rollout.episode_type, role_id, policy), []).append(rollout.rewards[role_id])
    sums = {seat: (fsum(values), len(values) - 1) for seat, values in rewards.items()}
    samples = []
    for rollout in trained_rollouts(results):
        for index, step in enumerate(rollout.steps):
            if step.policy:
                reward = rollout.rewards[step.role_id]
                total, others = sums[rollout.episode_type, step.role_id, step.policy]
                mean = (total - reward) / others if others else 0.0
                position = position_of(rollout.episode_type, step)
                samples.append(_Sample((rollout.id, index), position, step, reward, mean))
    return samples
