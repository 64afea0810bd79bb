"""Leave out the answers to prompts without a signal, so that they count neither for a gradient nor its means.

A prompt is without a signal if no answer to it in the batch has an advantage. With advantages that are
relative to the other answers to a prompt, these are the groups of equal rewards that DAPO's dynamic sampling
leaves out (Yu et al. 2025, arXiv 2503.14476, section 3.2). An answer whose advantage is 0 beside others that
have one stays: it has earned the mean of its group, and counts in the means over answers and tokens.

DAPO then goes on sampling until the batch is full again. Here it is not filled up, so the number of answers
that remain, over which the means are, differs from update to update.
"""

import hashlib
from array import array
from dataclasses import replace

from selfplay.core.types import Answer, TrainingRecord

NO_ADVANTAGE = 1e-8
"""Advantages up to this size count as 0: centred rewards that are equal can differ by rounding."""

Prompt = tuple[float, bytes]
"""What was asked: the temperature, and a digest of all ids before an answer."""


def without_zero_advantages(records: list[TrainingRecord]) -> list[TrainingRecord]:
    """Return the records without the answers to prompts at which no answer has an advantage, in their order.

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
    return _joined(record, kept) if kept else None


def _joined(record: TrainingRecord, answers: list[Answer]) -> TrainingRecord:
    """Return a record of some of a conversation's answers."""
    first, *later = answers
    return replace(record, **({} if first is record else vars(first)), later=later)
