"""Leave out answers whose advantage is 0, so that they count neither for a gradient nor for its means.

This is the half of DAPO's dynamic sampling that leaves out groups of equal rewards (Yu et al. 2025, arXiv
2503.14476, section 3.2).
"""

from dataclasses import replace

from selfplay.core.types import Answer, TrainingRecord

NO_ADVANTAGE = 1e-8
"""Advantages up to this size count as 0: centred rewards that are equal can differ by rounding."""


def without_zero_advantages(records: list[TrainingRecord]) -> list[TrainingRecord]:
    """Return the records without the answers whose advantage is 0, in the same order.

    An answer that is left out of a conversation remains in the prompt of the next one. If no answer has an
    advantage, all records are returned, so that there is something to update on.
    """
    kept = [one for record in records if (one := _with_advantages(record)) is not None]
    return kept or records


def _with_advantages(record: TrainingRecord) -> TrainingRecord | None:
    """Return the record with those of its answers that have an advantage; ``None`` if none has."""
    kept: list[Answer] = []
    before: list[int] = []
    for answer in record.answers:
        if abs(answer.advantage) > NO_ADVANTAGE:
            prompt = [*before, *answer.prompt_token_ids]
            kept.append(replace(answer, prompt_token_ids=prompt) if before else answer)
            before = []
        else:
            before += [*answer.prompt_token_ids, *answer.completion_token_ids]
    if len(kept) == len(record.answers):
        return record
    return _joined(record, kept) if kept else None


def _joined(record: TrainingRecord, answers: list[Answer]) -> TrainingRecord:
    """Return a record of some of a conversation's answers."""
    first, *later = answers
    return replace(record, **({} if first is record else vars(first)), later=later)
