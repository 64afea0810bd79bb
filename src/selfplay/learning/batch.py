"""Batch: training records packed into prefix trees, with the data a loss needs for each sampled token."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfplay.core import SelfplayError, TrainingRecord
from selfplay.learning.legal_answers import LegalAnswers
from selfplay.learning.trie import TreePlan, build_plan, cut_plan

NOTHING_FITS = "no record is shorter than learning.max_train_len; raise it"


class NoRecordFits(SelfplayError):
    """The batch is empty, or all of its records are too long to train on."""


@dataclass(frozen=True)
class Counts:
    """The numbers of records and tokens over which a batch's metrics are means.

    ``fresh_tokens`` were drawn by the version that learns and ``stale_tokens`` by older ones;
    ``answered_records`` have legal answers.
    """

    records: int
    fresh_tokens: int
    stale_tokens: int
    answered_records: int


@dataclass
class Tokens:
    """The S sampled tokens of one plan; prompt tokens are not among them.

    ``advantage_S`` is the advantage of each token's record divided by the number of records, so that sums
    over tokens are means over records. ``behaviour_S`` is the log-probability with which each token was
    drawn. ``stale_S`` marks tokens that an older policy version drew.
    """

    advantage_S: Tensor
    behaviour_S: Tensor
    stale_S: Tensor

    def importance_weights(self, logprobs_S: Tensor, maximum: float) -> Tensor:
        """Return min(pi / behaviour, maximum) without a gradient: truncated importance sampling.

        The policy that drew a token is never exactly the one that learns from it: it is an older version, or
        it has the same weights in an engine that computes differently (bfloat16, other kernels, other experts
        chosen). The weight corrects for both (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings
        You Off-Policy RL Training", where the bound is 2). Where engine and learner agree, it is 1 up to
        rounding.
        """
        return torch.exp(logprobs_S.detach() - self.behaviour_S).clamp(max=maximum)


@dataclass
class Batch:
    """R records and the legal answers to their prompts, as plans whose samples 0..R-1 are the records."""

    plans: list[TreePlan]
    answers: LegalAnswers
    start_R: NDArray[np.int64]
    advantage_R: NDArray[np.float32]
    stale_R: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    separate_tokens: int

    @property
    def num_records(self) -> int:
        """R, the number of records."""
        return len(self.advantage_R)

    @property
    def counts(self) -> Counts:
        """The numbers of records and tokens over which the metrics of this batch are means."""
        lengths_R = np.diff(self.start_R, append=len(self.behaviour))
        return Counts(
            records=self.num_records,
            fresh_tokens=int(lengths_R[~self.stale_R].sum()),
            stale_tokens=int(lengths_R[self.stale_R].sum()),
            answered_records=round(float(self.answers.visits_P.sum()) * self.num_records),
        )

    @property
    def packed_tokens(self) -> int:
        """Number of tokens in the forward passes of all plans."""
        return sum(plan.num_tokens for plan in self.plans)

    def tokens(self, plan: TreePlan, device: torch.device) -> Tokens:
        """Return the data that the loss needs for the records' tokens in ``plan``, in the plan's order."""
        own = plan.sample_S < self.num_records
        sample_S, offset_S = plan.sample_S[own], plan.offset_S[own]
        return Tokens(
            torch.from_numpy(self.advantage_R[sample_S] / np.float32(self.num_records)).to(device),
            torch.from_numpy(self.behaviour[self.start_R[sample_S] + offset_S]).to(device),
            torch.from_numpy(self.stale_R[sample_S]).to(device),
        )


def pack(
    records: list[TrainingRecord],
    *,
    version: int | None,
    max_train_len: int | None,
    with_answers: bool,
) -> Batch:
    """Pack records into plans, each of one sampling temperature, that share almost nothing with each other.

    Completions are cut where prompt and completion reach ``max_train_len`` tokens. Records whose prompt alone
    is that long are left out.

    Raises:
        NoRecordFits: no record is left.
    """
    limit = max_train_len or 1 << 60
    kept = [record for record in records if len(record.prompt_token_ids) < limit]
    if not kept:
        raise NoRecordFits(NOTHING_FITS)
    prompts = [record.prompt_token_ids for record in kept]
    completions = [record.completion_token_ids[: limit - len(record.prompt_token_ids)] for record in kept]
    lengths = np.array([len(completion) for completion in completions], dtype=np.int64)
    answers = LegalAnswers.collect(kept if with_answers else [])
    temperatures = [record.temperature for record in kept] + answers.temperatures
    plans = _plans(prompts + answers.prompts, completions + answers.answers, temperatures)
    behaviour = [record.logprobs[:length] for record, length in zip(kept, lengths, strict=True)]
    return Batch(
        plans=[piece for plan in plans for piece in cut_plan(plan)],
        answers=answers,
        start_R=np.cumsum(lengths) - lengths,
        advantage_R=np.array([record.advantage for record in kept], dtype=np.float32),
        stale_R=np.array([version is not None and record.policy_version < version for record in kept]),
        behaviour=np.concatenate(behaviour).astype(np.float32),
        separate_tokens=sum(len(prompt) for prompt in prompts) + int(lengths.sum()),
    )


def _plans(
    prompts: list[list[int]], completions: list[list[int]], temperatures: list[float]
) -> list[TreePlan]:
    """Return a plan for each temperature; samples have their numbers among all of them."""
    plans = []
    for temperature in sorted(set(temperatures)):
        numbers = [number for number, one in enumerate(temperatures) if one == temperature]
        plan = build_plan([prompts[n] for n in numbers], [completions[n] for n in numbers])
        sample_S = np.array(numbers, dtype=np.int64)[plan.sample_S]
        plans.append(replace(plan, sample_S=sample_S, temperature=temperature))
    return plans
