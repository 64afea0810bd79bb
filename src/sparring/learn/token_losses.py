"""Losses that a client of the server names: sums over the target tokens of its samples.

Nothing is normalised: that is in the client's weights and advantages. With r the ratio of the new to the old
probability of a token and A its advantage:

    cross_entropy          -w log p
    importance_sampling    -r A
    ppo                    -min(r A, clip(r) A)
    cispo                  -sg[clip(r)] A log p
    dro                    -(A log p - beta / 2 (log r)^2)
    gspo                   ppo with the ratio exp(mean log r) of the sample; gradients go to each token alike
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from sparring.core import InputError

Settings = Mapping[str, float]
CLIP = ("clip_low_threshold", "clip_high_threshold")
MASK = "sequence_ratio_mask"


@dataclass(frozen=True)
class GivenTokens:
    """What a client gave for each of S target tokens, by name, and the number of each one's sample."""

    inputs: Mapping[str, Tensor]
    sample_S: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.inputs[name]

    def clip(self, ratios_S: Tensor, settings: Settings) -> Tensor:
        """Return the ratios between the thresholds of their tokens, or of the settings."""
        low, high = (self.inputs.get(name, torch.tensor(settings[name])) for name in CLIP)
        return torch.minimum(torch.maximum(ratios_S, low), high)

    def mean_of_sample(self, values_S: Tensor) -> Tensor:
        """Return, for each token, the mean of the values of its sample's tokens in ``sequence_ratio_mask``,
        by default of all."""
        mask_S = self.inputs.get(MASK, torch.ones_like(values_S))
        size = int(self.sample_S.max()) + 1
        sums_2R = torch.zeros(2, size, dtype=values_S.dtype, device=values_S.device)
        sums_2R = sums_2R.index_add(1, self.sample_S, torch.stack([values_S * mask_S, mask_S]))
        return (sums_2R[0] / sums_2R[1].clamp(min=1e-6))[self.sample_S]


def cross_entropy(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -w log p of each token."""
    return -given["weights"] * logprobs_S


def importance_sampling(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -r A of each token."""
    return -torch.exp(logprobs_S - given["logprobs"]) * given["advantages"]


def ppo(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -min(r A, clip(r) A) of each token."""
    return _clipped(torch.exp(logprobs_S - given["logprobs"]), given, settings)


def cispo(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -sg[clip(r)] A log p of each token."""
    ratios_S = torch.exp(logprobs_S.detach() - given["logprobs"])
    return -given.clip(ratios_S, settings) * given["advantages"] * logprobs_S


def dro(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -(A log p - beta / 2 (log r)^2) of each token."""
    apart_S = logprobs_S - given["logprobs"]
    return -given["advantages"] * logprobs_S + settings["beta"] / 2 * apart_S**2


def gspo(logprobs_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    """Return -min(s A, clip(s) A) of each token, with s the ratio of its sample (GSPO-token)."""
    ratio_S = torch.exp(given.mean_of_sample((logprobs_S - given["logprobs"]).detach()))
    return _clipped(ratio_S * torch.exp(logprobs_S - logprobs_S.detach()), given, settings)


def _clipped(ratios_S: Tensor, given: GivenTokens, settings: Settings) -> Tensor:
    advantages_S = given["advantages"]
    return -torch.minimum(ratios_S * advantages_S, given.clip(ratios_S, settings) * advantages_S)


@dataclass(frozen=True)
class _Kind:
    """A loss: its function, the inputs it needs and may have, and its settings with their defaults."""

    of: Callable[[Tensor, GivenTokens, Settings], Tensor]
    needs: tuple[str, ...] = ("logprobs", "advantages")
    may_have: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)


def _clipping(low: float, high: float) -> dict[str, float]:
    return dict(zip(CLIP, (low, high), strict=True))


LOSSES: Mapping[str, _Kind] = {
    "cross_entropy": _Kind(cross_entropy, needs=("weights",)),
    "importance_sampling": _Kind(importance_sampling),
    "ppo": _Kind(ppo, may_have=CLIP, settings=_clipping(0.8, 1.2)),
    "cispo": _Kind(cispo, may_have=CLIP, settings=_clipping(0.8, 1.2)),
    "dro": _Kind(dro, settings={"beta": 0.05}),
    "gspo": _Kind(gspo, may_have=(*CLIP, MASK), settings=_clipping(1 - 3e-4, 1 + 4e-4)),
}
"""The thresholds of GSPO are those of its paper (arXiv 2507.18071, section 5.1)."""


@dataclass(frozen=True)
class RequestedLoss:
    """A loss of :data:`LOSSES` with its settings."""

    kind: _Kind
    settings: Settings

    @classmethod
    def of(cls, name: str, settings: Mapping[str, float | str]) -> Self:
        """Return the loss that a client asks for. Raises InputError: there is none, or a setting is wrong."""
        if name not in LOSSES:
            raise InputError("loss_fn", f"{name!r:.60} is no loss here", f"Use {', '.join(LOSSES)}.")
        kind = LOSSES[name]
        for key, value in settings.items():
            if key not in kind.settings:
                have = ", ".join(kind.settings) or "none"
                raise InputError("loss_fn_config", f"{name} has no {key!r:.60}", f"Its settings: {have}.")
            if isinstance(value, str) or not math.isfinite(value):
                problem = f"{key} is {value!r:.60}"
                raise InputError("loss_fn_config", problem, "Give a finite number.")
        return cls(kind, {**kind.settings, **settings})  # type: ignore[dict-item] # texts were refused

    def check_inputs(self, names: set[str]) -> None:
        """Refuse inputs of a sample that this loss does not need or know. Raises InputError."""
        missing = sorted(set(self.kind.needs) - names)
        if missing:
            problem = f"{self.kind.of.__name__} needs {', '.join(missing)}"
            raise InputError("loss_fn_inputs", problem, "Give one number for each target token.")
        unknown = sorted(names - {*self.kind.needs, *self.kind.may_have})
        if unknown:
            problem = f"{self.kind.of.__name__} does not use {unknown[0]!r:.60}"
            raise InputError("loss_fn_inputs", problem, "Leave it out.")

    def __call__(self, logprobs_S: Tensor, given: GivenTokens) -> Tensor:
        """Return the loss of S tokens, their sum."""
        return self.kind.of(logprobs_S, given, self.settings).sum()
