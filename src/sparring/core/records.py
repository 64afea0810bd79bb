"""Training records: made of the steps that were played, joined into conversations, and left out if they say
nothing.

One function, :func:`record_of`, makes a record of a step, for arenas and for replay buffers.
"""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import count, pairwise
from typing import Any, TypeVar

from sparring.core.errors import SparringError
from sparring.core.messages import Messages
from sparring.core.played import check_logprobs
from sparring.core.types import Answer, GenerateResult, Step, TrainingRecord

NO_ADVANTAGE = 1e-8
"""Advantages up to this size count as 0: centred rewards that are equal can differ by rounding."""

AnswerT = TypeVar("AnswerT", bound=Answer)
EncodeAnswer = Callable[[Messages, str], list[int]]
"""Returns the token ids of an answer to a prompt, including the stop token."""
Prompt = tuple[float, bytes]
"""What was asked: the temperature, and a digest of all ids before an answer."""


def records_of(results: list[GenerateResult]) -> list[TrainingRecord]:
    """Return the records of an arena's results, parents first: the steps that a policy is trained on.

    Steps without token ids are left out. Steps of one conversation become one record; see :func:`joined`.
    """
    turns = defaultdict[tuple[str, str], Iterator[int]](count)
    return joined(
        [
            record_of(step, rollout.id, turn, rollout.episode_type, rollout.meta)
            for result in results
            for rollout in result.trainable_rollouts()
            for step in rollout.steps
            if step.policy
            for turn in [next(turns[rollout.id, step.role_id])]
            if not step.text_only
        ]
    )


def records_from_steps(steps: list[Step], encode_answer: EncodeAnswer | None = None) -> list[TrainingRecord]:
    """Return the records of the steps that a replay buffer has drawn, in their order.

    ``legal_answers`` stay texts without ``encode_answer``; see :func:`with_alternatives`.

    Raises:
        SparringError: a step has no token ids, or not one log-probability for each.
    """
    records = joined(
        [
            record_of(step, step.info.get("rollout_id", ""), step.info.get("step_index", 0), step.env_id)
            for step in steps
        ]
    )
    return records if encode_answer is None else with_alternatives(records, encode_answer)


def record_of(
    step: Step, rollout_id: str, turn: int, env_id: str, meta: dict[str, Any] | None = None
) -> TrainingRecord:
    """Return the training record of a step.

    Args:
        step: one answer of a policy, with its reward and its advantage.
        rollout_id: the rollout that it is from; answers without one are not joined.
        turn: the number of the step among those of its role in the rollout, from 0.
        env_id: the environment, or the type of the episode.
        meta: further notes.

    Raises:
        SparringError: the step has no token ids, or not one log-probability for each.
    """
    prompt, completion, logprobs = step.prompt_token_ids, step.completion_token_ids, step.completion_logprobs
    where = f"a step of role {step.role_id} in rollout {rollout_id or 'unknown'}"
    if not prompt or not completion or logprobs is None:
        raise SparringError(
            f"{where} has no token ids or no log-probabilities; use a client that returns them"
        )
    check_logprobs(completion, logprobs, where)
    legal_answers = step.info.get("legal_answers", [])
    finish_reason = step.info.get("finish_reason", "")
    notes = {"pid": step.pid, "env_id": env_id, "finish_reason": finish_reason}
    if finish_reason == "length" and _goes_on(step.completion_text, legal_answers):
        notes["goes_on"] = True
    return TrainingRecord(
        role_id=step.role_id,
        rollout_id=rollout_id,
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=logprobs,
        reward=step.reward,
        advantage=step.advantage,
        turn=turn,
        legal_answers=legal_answers,
        prompt=step.prompt if legal_answers else [],
        policy_version=step.policy_version,
        policy=step.policy,
        temperature=step.temperature,
        meta=notes | (meta or {}),
    )


def _goes_on(text: str, legal_answers: list[str]) -> bool:
    """Return whether a text begins with a legal answer and goes on after it."""
    rests = [text.strip().removeprefix(one) for one in legal_answers if text.strip().startswith(one)]
    return any(rest and not rest[0].isalnum() for rest in rests)


def with_alternatives(records: list[TrainingRecord], encode_answer: EncodeAnswer) -> list[TrainingRecord]:
    """Return the records with the ``legal_answers`` of each answer as token ids in ``alternatives``."""

    def encoded(answer: AnswerT) -> AnswerT:
        ids = [encode_answer(answer.prompt, text) for text in answer.legal_answers]
        return replace(answer, alternatives=ids) if ids else answer

    return [
        encoded(replace(one, later=list(map(encoded, one.later))) if one.later else one) for one in records
    ]


def joined(records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    """Return records in which the answers of a conversation are together.

    An answer continues another one of its role in its rollout if its prompt begins with that one's prompt and
    completion. Forty turns then have the tokens of one conversation, not of twenty. The records given have
    one answer each, may come in any order, and stay unchanged; those without a rollout are not joined.
    """
    talks: list[list[int]] = []
    open_talks = defaultdict[tuple[str, str, str, float], list[list[int]]](list)
    for place in sorted(range(len(records)), key=lambda place: len(records[place].prompt_token_ids)):
        record = records[place]
        own = open_talks[record.rollout_id, record.role_id, record.policy, record.temperature]
        for talk in reversed(own) if record.rollout_id else ():
            if _continues(records[talk[-1]], record):
                talk.append(place)
                break
        else:
            own.append([place])
            talks.append(own[-1])
    return [_conversation([records[place] for place in talk]) for talk in sorted(talks, key=min)]


def _continues(last: TrainingRecord, record: TrainingRecord) -> bool:
    return _begins_with(record.prompt_token_ids, last.prompt_token_ids, last.completion_token_ids)


def _conversation(turns: list[TrainingRecord]) -> TrainingRecord:
    later = []
    for last, record in pairwise(turns):
        answer = Answer(**{field.name: getattr(record, field.name) for field in fields(Answer)})
        begun = len(last.prompt_token_ids) + len(last.completion_token_ids)
        answer.prompt_token_ids = record.prompt_token_ids[begun:]
        later.append(answer)
    return replace(turns[0], later=later) if later else turns[0]


def mark_prefix(earlier: Sequence[Step], step: Step) -> None:
    """Set ``step.info["prefix_kept"]``: whether the prompt begins with the role's last prompt and answer.

    It is not set for a role's first step, and for steps without token ids.
    """
    last = next((one for one in reversed(earlier) if one.role_id == step.role_id), None)
    if last is not None and last.prompt_token_ids and last.completion_token_ids and step.prompt_token_ids:
        kept = _begins_with(step.prompt_token_ids, last.prompt_token_ids, last.completion_token_ids)
        step.info["prefix_kept"] = kept


def _begins_with(prompt: list[int], so_far: list[int], drawn: list[int]) -> bool:
    """Return whether a prompt is longer than ``so_far + drawn`` and begins with it."""
    start, end = len(so_far), len(so_far) + len(drawn)
    return len(prompt) > end and prompt[start:end] == drawn and prompt[:start] == so_far


def without_zero_advantages(records: list[TrainingRecord]) -> list[TrainingRecord]:
    """Return the records without the answers to prompts at which no answer has an advantage, in their order.

    With advantages that are relative to the other answers to a prompt, these are the groups of equal rewards
    that DAPO's dynamic sampling leaves out (Yu et al. 2025, arXiv 2503.14476, section 3.2). An answer whose
    advantage is 0 beside others that have one stays: it has earned the mean of its group, and counts in the
    means over answers and tokens. DAPO then goes on sampling until the batch is full again; here it is not
    filled up, so the number of answers over which the means are differs from update to update.

    Two prompts are the same if all ids from the beginning of the conversation are, and the temperature. An
    answer that is left out of a conversation remains in the prompt of the next one. If no answer has an
    advantage, all records are returned, so that there is something to update on.
    """
    prompts = [_prompts(record) for record in records]
    with_signal = {
        prompt
        for record, own in zip(records, prompts, strict=True)
        for answer, prompt in zip(record.answers, own, strict=True)
        if abs(answer.advantage) > NO_ADVANTAGE
    }
    parts = [
        _part(record, [prompt in with_signal for prompt in own])
        for record, own in zip(records, prompts, strict=True)
    ]
    return [part for part in parts if part is not None] or records


def _prompts(record: TrainingRecord) -> list[Prompt]:
    """Return the prompt of each answer. The ids of a conversation are read once, not once for each answer."""
    so_far = hashlib.sha256()
    prompts = []
    for answer in record.answers:
        so_far.update(array("I", answer.prompt_token_ids))
        prompts.append((record.temperature, so_far.digest()))
        so_far.update(array("I", answer.completion_token_ids))
    return prompts


def _part(record: TrainingRecord, is_kept: list[bool]) -> TrainingRecord | None:
    """Return the record with those of its answers that are kept; ``None`` if none is."""
    if all(is_kept):
        return record
    kept: list[Answer] = []
    before: list[int] = []
    for answer, stays in zip(record.answers, is_kept, strict=True):
        if stays:
            prompt = [*before, *answer.prompt_token_ids]
            kept.append(replace(answer, prompt_token_ids=prompt) if before else answer)
            before = []
        else:
            before += [*answer.prompt_token_ids, *answer.completion_token_ids]
    if not kept:
        return None
    first, *later = kept
    return replace(record, **({} if first is record else vars(first)), later=later)
