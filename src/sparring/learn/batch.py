"""Batch: training records packed into prefix trees, with the data a loss needs for each sampled token."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparring.core import SparringError, TrainingRecord, derive_seed
from sparring.core.types import Answer
from sparring.learn.legal_answers import FloatArray, LegalAnswers, Position
from sparring.learn.trie import TOKEN, TokenSequence, TreePlan, bytes_of, plans_of

NOTHING_FITS = "no record is shorter than learning.max_train_len; raise it"

NO_LIMIT = 1 << 60


class NoRecordFits(SparringError):
    """The batch is empty, or all of its records are too long to train on."""


@dataclass(frozen=True)
class Counts:
    """The numbers of answers and tokens over which a batch's metrics are means: fresh ones are on-policy."""

    answers: int
    fresh_tokens: int
    stale_tokens: int
    regularised: int

    @property
    def tokens(self) -> int:
        """Number of drawn tokens."""
        return self.fresh_tokens + self.stale_tokens


@dataclass
class Tokens:
    """The S sampled tokens of one plan; prompt tokens are not among them.

    ``advantage_S`` is the advantage of each token's answer divided by the number of answers; ``credit_S`` is
    the same before ``kl_in = "reward"`` subtracts a KL divergence. ``behaviour_S`` is the log-probability
    with which each token was drawn, ``old_S`` that before the update's first step (``None`` if there is only
    one). ``stale_S`` marks tokens that an older version drew. ``answer_S`` numbers the answers of the plan,
    ``sample_S`` those of the batch; ``offset_S`` is a token's index in its answer, ``length_S`` the answer's
    length, and ``mean_length`` the mean length over the whole update. ``num_answers`` is the number by which
    advantages are divided; divide by it whatever else a loss adds.
    """

    advantage_S: Tensor
    credit_S: Tensor
    behaviour_S: Tensor
    stale_S: Tensor
    answer_S: Tensor
    offset_S: Tensor
    length_S: Tensor
    mean_length: float
    old_S: Tensor | None = None
    sample_S: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    num_answers: int = 1

    def importance_weights(self, logprobs_S: Tensor, maximum: float) -> Tensor:
        """Return min(pi / behaviour, maximum) without a gradient: truncated importance sampling."""
        return torch.exp(logprobs_S.detach() - self.behaviour_S).clamp(max=maximum)


@dataclass
class Batch:
    """R answers that were drawn, and legal answers to the same prompts, as plans.

    Samples 0..R-1 of the plans are the answers of the records, ``kept``, in their order. ``behaviour`` are
    the log-probabilities with which the tokens were drawn, ``start_R`` the place of each answer's first one,
    and ``old`` those before the update's first step. ``others`` are logprobs_C of each plan by other
    adapters, by name. ``measured`` is whether the mismatch of engine and learner has been measured. For a
    critic, ``hidden_ND`` are the states in which answers were drawn and ``state_of_R`` that of each answer,
    ``value_R`` are their values before the update's first step and ``target_R`` what these are to become, in
    the critic's own unit.
    """

    plans: list[TreePlan]
    answers: LegalAnswers
    start_R: NDArray[np.int64]
    advantage_R: NDArray[np.float32]
    stale_R: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    separate_tokens: int
    mean_length: float
    old: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    others: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    measured: bool = False
    kept: list[Answer] = field(default_factory=list)
    hidden_ND: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    state_of_R: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    value_R: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    target_R: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))

    @property
    def num_answers(self) -> int:
        """R, the number of answers that were drawn."""
        return len(self.advantage_R)

    @property
    def counts(self) -> Counts:
        """The numbers of records and tokens over which the metrics of this batch are means."""
        lengths_R = np.diff(self.start_R, append=len(self.behaviour))
        return Counts(
            answers=self.num_answers,
            fresh_tokens=int(lengths_R[~self.stale_R].sum()),
            stale_tokens=int(lengths_R[self.stale_R].sum()),
            regularised=round(float(self.answers.visits_P.sum()) * self.num_answers),
        )

    @property
    def packed_tokens(self) -> int:
        """Number of tokens in the forward passes of all plans."""
        return sum(plan.num_tokens for plan in self.plans)

    def first_tokens(self, plan: TreePlan) -> NDArray[np.bool_]:
        """Return first_S: which of the S tokens of ``plan`` are the first of an answer that was drawn."""
        first_S: NDArray[np.bool_] = (plan.offset_S == 0) & self.is_drawn(plan)
        return first_S

    def is_drawn(self, plan: TreePlan) -> NDArray[np.bool_]:
        """Return which of a plan's S tokens were drawn; the others are of legal answers."""
        drawn_S: NDArray[np.bool_] = plan.sample_S < self.num_answers
        return drawn_S

    def state_sums(self) -> FloatArray:
        """Return the number of states, their squares' sum, and their sum_D, over all answers."""
        hidden_ND: FloatArray = self.hidden_ND.double().cpu().numpy()
        answers_N = np.bincount(self.state_of_R, minlength=len(hidden_ND)).astype(np.float64)
        squares_N = (hidden_ND**2).sum(axis=1)
        return np.array([answers_N.sum(), answers_N @ squares_N, *(answers_N @ hidden_ND)])

    def places(self, plan: TreePlan) -> NDArray[np.int64]:
        """Return the place in ``behaviour`` of each drawn token of ``plan``, in the plan's order."""
        own = self.is_drawn(plan)
        places: NDArray[np.int64] = self.start_R[plan.sample_S[own]] + plan.offset_S[own]
        return places

    def tokens(self, plan: TreePlan, device: torch.device) -> Tokens:
        """Return the data that the loss needs for the drawn tokens in ``plan``, in the plan's order."""
        own = self.is_drawn(plan)
        sample_S, offset_S, place_S = plan.sample_S[own], plan.offset_S[own], self.places(plan)
        _, answer_S, lengths = np.unique(sample_S, return_inverse=True, return_counts=True)
        advantage_S = torch.from_numpy(self.advantage_R[sample_S] / np.float32(self.num_answers)).to(device)
        return Tokens(
            advantage_S,
            advantage_S,
            torch.from_numpy(self.behaviour[place_S]).to(device),
            torch.from_numpy(self.stale_R[sample_S]).to(device),
            torch.from_numpy(answer_S).to(device),
            torch.from_numpy(offset_S).to(device),
            torch.from_numpy(lengths[answer_S].astype(np.float32)).to(device),
            self.mean_length,
            torch.from_numpy(self.old[place_S]).to(device) if len(self.old) else None,
            torch.from_numpy(sample_S).to(device),
            self.num_answers,
        )


def pack(
    records: list[TrainingRecord],
    *,
    version: int | None,
    max_train_len: int | None,
    with_answers: bool,
    cut_illegal: bool = False,
) -> Batch:
    """Pack records into plans, each of one sampling temperature, that share almost nothing with each other.

    A record is cut after ``max_train_len`` tokens. With ``cut_illegal``, answers that are not among the legal
    ones keep only their first token. Raises NoRecordFits if no answer is left.
    """
    sequences, kept, positions = list[tuple[TokenSequence, float]](), list[Answer](), list[Position]()
    behaviour = list[NDArray[np.float32]]()
    heads = dict[int, bytes]()  # many records have one prompt object
    for record in records:
        answers = _fitting(record, max_train_len or NO_LIMIT)
        if not answers:
            continue
        if cut_illegal:
            answers = [
                (answer, start, stop if answer.completion_token_ids in answer.alternatives else start + 1)
                for answer, start, stop in answers
            ]
        head = record.prompt_token_ids
        if id(head) not in heads:
            heads[id(head)] = bytes_of(head)
        rest = (bytes_of(ids) for answer, _, _ in answers for ids in _ids_after(head, answer))
        ids = b"".join([heads[id(head)], *rest])[: answers[-1][2] * TOKEN.itemsize]
        drawn = [range(start, stop) for _, start, stop in answers]
        sequences.append((TokenSequence(ids, drawn), record.temperature))
        for answer, start, stop in answers:
            kept.append(answer)
            behaviour.append(np.frombuffer(array("f", answer.logprobs[: stop - start]), dtype=np.float32))
            if with_answers:
                before = ids[: start * TOKEN.itemsize]
                positions.append(Position(before, answer.alternatives, record.temperature))
    if not kept:
        raise NoRecordFits(NOTHING_FITS)
    separate_tokens = sum(len(sequence.ids) for sequence, _ in sequences) // TOKEN.itemsize
    legal = LegalAnswers.collect(positions)
    for prompt, answer_ids, temperature in zip(legal.prompts, legal.answers, legal.temperatures, strict=True):
        begin = len(prompt) // TOKEN.itemsize
        whole = TokenSequence(prompt + bytes_of(answer_ids), [range(begin, begin + len(answer_ids))])
        sequences.append((whole, temperature))
    lengths = np.array([len(logprobs) for logprobs in behaviour], dtype=np.int64)
    return Batch(
        plans=_plans(sequences),
        answers=legal,
        start_R=np.cumsum(lengths) - lengths,
        advantage_R=np.array([answer.advantage for answer in kept], dtype=np.float32),
        stale_R=np.array([version is not None and answer.policy_version < version for answer in kept]),
        behaviour=np.concatenate(behaviour),
        separate_tokens=separate_tokens,
        mean_length=float(lengths.mean()),
        kept=kept,
    )


def _plans(sequences: list[tuple[TokenSequence, float]]) -> list[TreePlan]:
    """Return plans, each of one temperature; samples have their numbers among all sequences."""
    first = np.cumsum([0, *(len(sequence.samples) for sequence, _ in sequences)])
    plans = []
    for temperature in sorted({one for _, one in sequences}):
        chosen = [n for n, (_, one) in enumerate(sequences) if one == temperature]
        numbers = np.concatenate([np.arange(first[n], first[n + 1]) for n in chosen])
        for plan in plans_of([sequences[n][0] for n in chosen]):
            plans.append(replace(plan, sample_S=numbers[plan.sample_S], temperature=temperature))
    return plans


def fits(record: TrainingRecord, max_train_len: int | None) -> bool:
    """Return whether any answer of a record can be trained on."""
    return bool(_fitting(record, max_train_len or NO_LIMIT))


def mean_answer_length(records: list[TrainingRecord], max_train_len: int | None) -> float:
    """Return the mean number of tokens that are trained on in an answer; 1 if there is no such answer."""
    bounds = [bound for record in records for bound in _fitting(record, max_train_len or NO_LIMIT)]
    return sum(stop - start for _, start, stop in bounds) / len(bounds) if bounds else 1.0


def _ids_after(head: list[int], answer: Answer) -> list[list[int]]:
    completion = answer.completion_token_ids
    return [completion] if answer.prompt_token_ids is head else [answer.prompt_token_ids, completion]


def _fitting(record: TrainingRecord, limit: int) -> list[tuple[Answer, int, int]]:
    found, position = [], 0
    for answer in record.answers:
        start = position + len(answer.prompt_token_ids)
        if start >= limit:
            break
        position = start + len(answer.completion_token_ids)
        found.append((answer, start, min(position, limit)))
    return found


@dataclass
class MiniBatch:
    """Records, and the batch of this learner's shard of them, once it has been packed."""

    records: list[TrainingRecord]
    packed: Batch | None = None


def epochs_of(
    records: list[TrainingRecord], epochs: int, count: int, seed: int, max_train_len: int | None
) -> list[list[MiniBatch]]:
    """Return the mini-batches of each epoch of one update, in the order of their steps.

    Every epoch divides the records anew, as PPO's implementations do; all learners of a group divide alike. A
    single mini-batch is the same in all epochs.
    """
    if count == 1:
        return [[MiniBatch(records)]] * epochs

    def divided(epoch: int) -> list[MiniBatch]:
        return minibatches_of(records, count, derive_seed(seed, "epoch", epoch), max_train_len)

    first = divided(0)
    if len(first) == 1:
        return [first] * epochs
    return [first, *map(divided, range(1, epochs))]


def minibatches_of(
    records: list[TrainingRecord], count: int, seed: int, max_train_len: int | None
) -> list[MiniBatch]:
    """Divide the records that fit at random into at most ``count`` mini-batches of nearly equal size."""
    fitting = [record for record in records if fits(record, max_train_len)]
    shuffled = random.Random(seed).sample(fitting, len(fitting))
    return [MiniBatch(shuffled[first::count]) for first in range(max(min(count, len(fitting)), 1))]


class AnswerTable:
    """The places of the A answers of an update, and of their tokens, in flat arrays.

    What is measured in the mini-batches of the first epoch is read for those of later ones. An answer is with
    one learner of a group in each epoch, so the sum of the learners' arrays is what all of them have
    measured.
    """

    def __init__(self, records: Sequence[TrainingRecord]) -> None:
        self.answers: list[tuple[TrainingRecord, Answer]] = [
            (record, answer) for record in records for answer in record.answers
        ]
        self._place_of = {id(answer): place for place, (_, answer) in enumerate(self.answers)}
        lengths = [len(answer.completion_token_ids) for _, answer in self.answers]
        self._start_A = np.cumsum([0, *lengths])[:-1]
        self.num_tokens = sum(lengths)

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """Return the place of each of the R answers of a batch."""
        return np.array([self._place_of[id(answer)] for answer in batch.kept], dtype=np.int64)

    def token_places(self, batch: Batch) -> NDArray[np.int64]:
        """Return the place of each token of a batch, in the order of ``batch.behaviour``."""
        lengths_R = np.diff(batch.start_R, append=len(batch.behaviour))
        shift_R = self._start_A[self.places(batch)] - batch.start_R
        places: NDArray[np.int64] = np.repeat(shift_R, lengths_R) + np.arange(len(batch.behaviour))
        return places
