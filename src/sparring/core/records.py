"""Training records, made of the steps that were played, and the account and the check of an arena's batch of
them."""

import hashlib
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import count, pairwise
from typing import Any, TypeVar

from sparring.core.errors import SparringError
from sparring.core.messages import Messages
from sparring.core.played import check_logprobs
from sparring.core.types import Answer, GenerateResult, Rollout, Step, TrainingBatch, TrainingRecord


def summary_of(results: list[GenerateResult], step_num: int) -> dict[str, Any]:
    """Return the counts and means of a step, which TrainingBatch describes."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    steps = _steps(results)
    means: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for role_id, reward in rollout.rewards.items():
            means[f"reward/{role_id}"].append(reward)
        for name, value in rollout.metrics.items():
            means[f"metric/{rollout.episode_type}/{name}"].append(value)
    return {
        "step": step_num,
        "policy_version": max((step.policy_version for step in steps), default=0),
        "episodes": len(rollouts),
        "failed": sum(rollout.error is not None for rollout in rollouts),
        "last_error": next((rollout.error for rollout in reversed(rollouts) if rollout.error), None),
        "retried": sum(rollout.meta.get("retried", 0) for rollout in rollouts),
        "steps": len(steps),
        "text_only_steps": sum(step.text_only for step in steps if step.policy),
        "broken_prefixes": sum(step.info.get("prefix_kept") is False for step in steps if step.policy),
        **{name: math.fsum(values) / len(values) for name, values in sorted(means.items())},
    }


def rewarded_without_step(results: list[GenerateResult]) -> Counter[str]:
    """Return the roles that are rewarded but acted in no rollout, each with the number of such rewards."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    acted = {step.role_id for rollout in rollouts for step in rollout.steps}
    return Counter(role for rollout in rollouts for role in rollout.rewards if role not in acted)


def why_empty(results: list[GenerateResult]) -> str:
    """Return why the results give no record."""
    meta, kept = summary_of(results, 0), _steps(results)
    if not results:
        return "get_batch returned no request"
    if meta["failed"] == meta["episodes"]:
        return f"every episode failed; the last: {meta['last_error']}"
    if not any(result.trainable_rollouts() for result in results):
        return "no request is trainable"
    if not kept:
        return "no episode appended response.to_step(role_id, messages) to state.trajectory"
    if not any(step.policy for step in kept):
        return "no step is of a policy that is trained"
    return "the client returned no token ids with log-probabilities"


def check_batch(results: list[GenerateResult], batch: TrainingBatch) -> None:
    """Raise a SparringError unless the batch has exactly the records that follow from the results."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    if len({rollout.id for rollout in rollouts}) < len(rollouts):
        raise SparringError("several rollouts have the same id, so their advantages are mixed up")
    expected = records_of(results)
    if len(expected) != len(batch.records):
        raise SparringError(
            f"{len(expected)} records follow from the steps, but the batch has {len(batch.records)}"
        )
    for wanted, record in zip(expected, batch.records, strict=True):
        if record != wanted:
            where = f"the record of role {record.role_id} in rollout {record.rollout_id}"
            raise SparringError(
                f"{where} differs from the step that was played by {wanted.role_id} in {wanted.rollout_id}"
            )


def _steps(results: list[GenerateResult]) -> list[Step]:
    rollouts = (rollout for result in results for rollout in result.trainable_rollouts())
    return [step for rollout in rollouts for step in rollout.steps]


NO_ADVANTAGE = 1e-8
"""Advantages up to this size count as 0: centred rewards that are equal can differ by rounding."""

AnswerT = TypeVar("AnswerT", bound=Answer)
EncodeAnswer = Callable[[Messages, str], list[int]]
"""Returns the token ids of an answer to a prompt, including the stop token."""
Prompt = tuple[float, bytes]
"""What was asked: the temperature, and a digest of all ids before an answer."""


def records_of(results: list[GenerateResult]) -> list[TrainingRecord]:
    """Return the records of an arena's results, parents first: the steps that a policy is trained on, joined
    into conversations. Steps without token ids are left out."""
    turns = defaultdict[tuple[str, str], Iterator[int]](count)
    return joined(
        [
            record_of(step, rollout.id, turn, rollout.episode_type, notes, place=place)
            for result in results
            for rollout in result.trainable_rollouts()
            for notes in [rollout.meta | others_of(rollout)]
            for place, step in enumerate(rollout.steps)
            if step.policy
            for turn in [next(turns[rollout.id, step.role_id])]
            if not step.text_only
        ]
    )


def records_from_steps(steps: list[Step], encode_answer: EncodeAnswer | None = None) -> list[TrainingRecord]:
    """Return the records of the steps that a replay buffer has drawn, in their order.

    ``legal_answers`` stay texts without ``encode_answer``; see :func:`with_alternatives`.
    """
    records = joined(
        [
            record_of(step, step.info.get("rollout_id", ""), index, step.env_id, place=place)
            for step in steps
            for index in [step.info.get("step_index", 0)]
            for place in [step.info.get("place", index)]
        ]
    )
    return records if encode_answer is None else with_alternatives(records, encode_answer)


def others_of(rollout: Rollout) -> dict[str, bool]:
    """Return the note ``others`` if one can see that no policy plays a rollout alone: the arena's roles have
    several, several acted, or a seat is not trained. A step's own note precedes it."""
    several = rollout.meta.get("others") is True or len({step.policy for step in rollout.steps}) > 1
    fixed = any(one.kind != "policy" for one in rollout.agents.values())
    return {"others": True} if several or fixed else {}


_NOTES = ("explore", "explored", "others", "reasoning", "forced")


def record_of(
    step: Step,
    rollout_id: str,
    turn: int,
    env_id: str,
    meta: dict[str, Any] | None = None,
    *,
    place: int = 0,
) -> TrainingRecord:
    """Return the training record of a step: ``turn`` is its number among those of its role in the rollout,
    and ``place`` that among those of all roles, from 0.

    ``env_id`` is the environment or the type of the episode, ``meta`` further notes. Answers without a
    ``rollout_id`` are not joined. A step without token ids, or not one log-probability for each, raises a
    SparringError.
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
    notes |= meta or {}
    notes |= {name: step.info[name] for name in _NOTES if name in step.info}
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
        place=place,
        legal_answers=legal_answers,
        prompt=step.prompt if legal_answers else [],
        policy_version=step.policy_version,
        policy=step.policy,
        temperature=step.temperature,
        meta=notes,
    )


def _goes_on(text: str, legal_answers: list[str]) -> bool:
    """Return whether a text begins with a legal answer and goes on after it."""
    said, answers = text.strip(), map(str.strip, legal_answers)
    rests = [said.removeprefix(one) for one in answers if said.startswith(one)]
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
    completion. The records given have one answer each, may come in any order, and stay unchanged; those
    without a rollout are not joined.
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
    return [
        _without_forced(_conversation([records[place] for place in talk])) for talk in sorted(talks, key=min)
    ]


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


def _without_forced(record: TrainingRecord) -> TrainingRecord:
    """Return a record in which answers end before the ids that the engine put into them, to end a thought,
    and go on after them, so that nobody learns from these."""
    if not any("forced" in answer.meta for answer in record.answers):
        return record
    first, *later = [part for answer in record.answers for part in _parts_drawn(answer)]
    return replace(record, **vars(first), later=later) if first is not record else record


def _parts_drawn(answer: Answer) -> list[Answer]:
    if "forced" not in answer.meta:
        return [answer]
    start, end = answer.meta["forced"]
    ids, logprobs = answer.completion_token_ids, answer.logprobs
    fields_of = {field.name: getattr(answer, field.name) for field in fields(Answer)}
    before = Answer(**fields_of | {"completion_token_ids": ids[:start], "logprobs": logprobs[:start]})
    if end >= len(ids):
        return [before]
    after = {
        "prompt_token_ids": ids[start:end],
        "completion_token_ids": ids[end:],
        "logprobs": logprobs[end:],
        "meta": answer.meta | {"rest": True},
    }
    return [before, Answer(**fields_of | after)]


def mark_prefix(earlier: Sequence[Step], step: Step) -> None:
    """Set ``step.info["prefix_kept"]``: whether the prompt begins with the role's last prompt and answer. It
    is not set for a role's first step, and for steps without token ids."""
    last = next((one for one in reversed(earlier) if one.role_id == step.role_id), None)
    if last is not None and last.prompt_token_ids and last.completion_token_ids and step.prompt_token_ids:
        kept = _begins_with(step.prompt_token_ids, last.prompt_token_ids, last.completion_token_ids)
        step.info["prefix_kept"] = kept


def _begins_with(prompt: list[int], so_far: list[int], drawn: list[int]) -> bool:
    start, end = len(so_far), len(so_far) + len(drawn)
    return len(prompt) > end and prompt[start:end] == drawn and prompt[:start] == so_far


def without_zero_advantages(records: list[TrainingRecord]) -> list[TrainingRecord]:
    """Return the records without the answers to prompts at which no answer has an advantage, in their order.

    With advantages that are relative to the other answers to a prompt, these are the groups of equal rewards
    that DAPO's dynamic sampling leaves out (Yu et al. 2025, arXiv 2503.14476, section 3.2). DAPO then samples
    until the batch is full again; here it is not filled up.

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
