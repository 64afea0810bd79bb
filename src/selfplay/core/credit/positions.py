"""Positions: what is remembered of a policy's answers to one prompt of a role."""

import hashlib
import json
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from selfplay.core.types import Step

MAX_ANSWERS = 32
"""Number of answers of a position whose log-probabilities are remembered; the last drawn stay."""
LEAST_RHO = 0.875
"""The least share of its memory that a position keeps in a batch: ``trainer.spo.rho.clip_lower`` in the
authors' code of SPO (volcengine/verl, ``recipe/spo``). A position remembers at least 1 / (1 - 0.875) = 8
batches."""
GREATEST_RHO = 0.96
"""The greatest share: the upper bound in ``_get_spo_rho`` of the same code. A position remembers at most 25
batches, also where no answer is drawn again."""


def position_of(episode_type: str, step: Step) -> str | None:
    """Return the name of a step's position: a digest of type, role, policy and prompt ids.

    ``None`` without ids.
    """
    if not step.prompt_token_ids:
        return None
    return _digest([episode_type, step.role_id, step.policy, step.prompt_token_ids])


def drawn_answer(step: Step) -> tuple[str, float] | None:
    """Return an answer's name and the mean of its tokens' log-probabilities. ``None`` without them."""
    if not step.completion_token_ids or step.completion_logprobs is None:
        return None
    # Eight bytes tell the few answers of one position apart, and keep checkpoints small.
    name = _digest(step.completion_token_ids)[:16]
    return name, fsum(step.completion_logprobs) / len(step.completion_token_ids)


@dataclass
class Position:
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
        """Forget as far as the policy has moved, then add the samples of one batch.

        Nothing depends on the order of ``rewards`` or ``drawn``. If a batch drew an answer several times, the
        mean of its log-probabilities is kept.
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
    def from_state(cls, state: list[Any]) -> "Position":
        """Return the position that :meth:`to_state` described."""
        rewards, samples, logprobs = state
        return cls(rewards, samples, dict(logprobs))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
