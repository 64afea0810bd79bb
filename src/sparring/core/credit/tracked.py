"""Rewards relative to a baseline that is remembered: of a role (RAE), or of each position (SPO)."""

import hashlib
import json
from dataclasses import dataclass, field
from itertools import islice
from math import fsum, sqrt
from typing import Any

from sparring.core.credit.assigners import (
    CreditAssigner,
    RolloutStepKey,
    steps_of_role,
    trained_roles,
    trained_rollouts,
)
from sparring.core.types import GenerateResult, Step

MAX_POSITIONS = 100_000
"""Number of positions that are remembered; the least recently used are forgotten."""
MAX_ANSWERS = 32
"""Number of answers of a position whose log-probabilities are remembered; the last drawn stay."""
LEAST_RHO = 0.875
"""The least share of its memory that a position keeps in a batch: ``trainer.spo.rho.clip_lower`` in the
authors' code of SPO (volcengine/verl, ``recipe/spo``). A position remembers at least 1 / (1 - 0.875) = 8
batches."""
GREATEST_RHO = 0.96
"""The greatest share: the upper bound in ``_get_spo_rho`` of the same code. A position remembers at most 25
batches, also where no answer is drawn again."""


@dataclass
class RAECredit(CreditAssigner):
    """Role-conditioned baseline: A = R - b, with a moving average b for each episode type, role and policy.

    Role-conditioned advantage estimation (SPIRAL, Liu et al. 2025). As there, ``decay`` applies per episode
    and the baselines begin at 0. SPIRAL's code updates b <- decay * b + (1 - decay) * R after each episode.
    Here all advantages of a batch use the baselines from before it, and its n episodes then update them
    together: b <- decay^n * b + (1 - decay^n) * mean of the batch, so their order does not matter.
    ``baselines`` has the keys TYPE/ROLE/POLICY.
    """

    decay: float = 0.95
    baselines: dict[str, float] = field(default_factory=dict)

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
        weights: dict[RolloutStepKey, float] = {}
        rewards: dict[str, list[float]] = {}
        for rollout in trained_rollouts(results):
            for role_id, policy in trained_roles(rollout).items():
                key = f"{rollout.episode_type}/{role_id}/{policy}"
                reward = rollout.rewards[role_id]
                rewards.setdefault(key, []).append(reward)
                advantage = reward - self.baselines.get(key, 0.0)
                weights |= dict.fromkeys(steps_of_role(rollout, role_id), advantage)
        for key, values in rewards.items():
            mean, kept = sum(values) / len(values), self.decay ** len(values)
            self.baselines[key] = kept * self.baselines.get(key, 0.0) + (1 - kept) * mean
        return weights

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baselines = dict(state["baselines"])


def position_of(episode_type: str, step: Step) -> str | None:
    """Return a digest of a step's type, role, policy and prompt ids; ``None`` without ids."""
    if not step.prompt_token_ids:
        return None
    return _digest([episode_type, step.role_id, step.policy, step.prompt_token_ids])


def drawn_answer(step: Step) -> tuple[str, float] | None:
    """Return an answer's name and the mean of its tokens' log-probabilities; ``None`` without them."""
    if not step.completion_token_ids or step.completion_logprobs is None:
        return None
    # Eight bytes tell the few answers of one position apart, and keep checkpoints small.
    name = _digest(step.completion_token_ids)[:16]
    return name, fsum(step.completion_logprobs) / len(step.completion_token_ids)


@dataclass
class TrackedPosition:
    """Decaying sums over the samples of one position, and how likely its answers were when last drawn."""

    rewards: float = 0.0
    """S, the sum of the rewards."""
    samples: float = 0.0
    """N, the number of samples."""
    logprobs: dict[str, float] = field(default_factory=dict)
    """The last log-probability of each answer, per token; those drawn last are at the end."""

    @property
    def value(self) -> float:
        """The weighted mean of the rewards, S / N."""
        return self.rewards / self.samples

    def add(self, rewards: list[float], drawn: list[tuple[str, float]], half_life: float) -> None:
        """Forget as far as the policy has moved, then add the samples of one batch, whose order does not
        matter.

        If a batch drew an answer several times, the mean of its log-probabilities is kept.
        """
        rho = min(max(2.0 ** (-self._change(drawn) / half_life), LEAST_RHO), GREATEST_RHO)
        self.rewards = fsum([rho * self.rewards, *rewards])
        self.samples = rho * self.samples + len(rewards)
        logprobs: dict[str, list[float]] = {}
        for answer, logprob in drawn:
            logprobs.setdefault(answer, []).append(logprob)
        for answer in sorted(logprobs):
            self.logprobs.pop(answer, None)
            self.logprobs[answer] = fsum(logprobs[answer]) / len(logprobs[answer])
        for answer in list(self.logprobs)[:-MAX_ANSWERS]:
            del self.logprobs[answer]

    def _change(self, drawn: list[tuple[str, float]]) -> float:
        """Return D, the mean absolute change per token of the answers drawn before; 0 without any."""
        changes = [
            abs(logprob - self.logprobs[answer]) for answer, logprob in drawn if answer in self.logprobs
        ]
        return fsum(changes) / len(changes) if changes else 0.0

    def to_state(self) -> list[Any]:
        """Return the fields as plain JSON values, in lists, which keep the order."""
        return [self.rewards, self.samples, [list(one) for one in self.logprobs.items()]]

    @classmethod
    def from_state(cls, state: list[Any]) -> "TrackedPosition":
        """Return the position that :meth:`to_state` described."""
        rewards, samples, logprobs = state
        return cls(rewards, samples, dict(logprobs))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


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
    one policy, in episodes of one type. Each has v = S / N. All samples of a batch read v before any of them
    changes it. Then for each position of the batch, once,

        S <- rho * S + sum of the rewards of its samples,   N <- rho * N + their number,
        rho = 2^(-D / half_life), but at least 0.875 and at most 0.96.

    D says how far the policy has moved there, in nats per token: the mean, over the samples whose answer was
    drawn there before, of the absolute change of the answer's log-probability since it was last drawn,
    divided by the answer's number of tokens; 0 without such a sample.

    At a position without a v, the baseline is the mean reward of the policy in this role, in other rollouts
    of this batch of the same episode type, each counted once; without any, it is 0. A step without token ids
    has no v. Finally all advantages of the batch are divided by their standard deviation about 0, sqrt(mean
    of A^2); if it is at most 1e-8, all are 0.

    ``half_life`` and the bounds of rho are those of the authors' code (volcengine/verl, ``recipe/spo``), from
    which this class differs in five ways:

    - Their v is the mean of a Beta distribution, for rewards of 0 or 1. A weighted mean does the same for all
    rewards.
    - Their v begins with eight answers of the untrained model to each prompt. The positions of a game are not
    known before it is played, so here v begins without an estimate.
    - Their batch asks each prompt once. Here a position may have many samples in a batch, for one rho.
    - Their D is the mean absolute change of the tokens of a prompt's last answer, which the model reads once
    more. Here only answers that are drawn again say how far the policy has moved, and the changes of an
    answer's tokens are added up before their absolute value is taken.
    - Their advantages are (A - mean) / (deviation + 1e-8). Here v is the only baseline: centring would also
    take from each position what v did not expect at the others.
    """

    half_life: float = 0.06
    positions: dict[str, TrackedPosition] = field(default_factory=dict)

    def compute(self, results: list[GenerateResult]) -> dict[RolloutStepKey, float]:
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
            position = self.positions.pop(name, None) or TrackedPosition()
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
        self.positions = {name: TrackedPosition.from_state(one) for name, one in state["positions"]}


def _samples(results: list[GenerateResult]) -> list[_Sample]:
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
