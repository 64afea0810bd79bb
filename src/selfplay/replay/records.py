"""Conversion of the steps that a replay buffer draws into training records.

Programs without a buffer make theirs in ``core/training_batch.py``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from selfplay.core import Messages, SelfplayError, Step, TrainingRecord
from selfplay.core.joined_records import joined
from selfplay.core.types import Answer

AnswerT = TypeVar("AnswerT", bound=Answer)
EncodeAnswer = Callable[[Messages, str], list[int]]
"""Returns the token ids of an answer to a prompt, including the stop token."""


def records_from_steps(steps: list[Step], encode_answer: EncodeAnswer | None = None) -> list[TrainingRecord]:
    """Convert the steps of a batch into training records, in the same order.

    Steps of a conversation become one record; see :func:`selfplay.core.joined_records.joined`. An answer's
    ``advantage`` is the step's reward after all transforms; its ``reward`` is that in the buffer, before the
    sampling transforms.
    ``legal_answers`` are ``step.info["legal_answers"]``; see :func:`with_alternatives`, which is left to the
    caller if ``encode_answer`` is not given.

    Raises:
        SelfplayError: a step has no token ids or no log-probabilities, or does not have exactly one
            log-probability for each sampled token.
    """
    records = joined([_record(step, index) for index, step in enumerate(steps)])
    return records if encode_answer is None else with_alternatives(records, encode_answer)


def with_alternatives(records: list[TrainingRecord], encode_answer: EncodeAnswer) -> list[TrainingRecord]:
    """Return the records with the ``legal_answers`` of each answer as token ids in ``alternatives``."""

    def encoded(answer: AnswerT) -> AnswerT:
        ids = [encode_answer(answer.prompt, text) for text in answer.legal_answers]
        return replace(answer, alternatives=ids) if ids else answer

    return [
        encoded(replace(one, later=list(map(encoded, one.later))) if one.later else one) for one in records
    ]


def _record(step: Step, index: int) -> TrainingRecord:
    where = (
        f"step {index} of the batch (role {step.role_id}, rollout {step.info.get('rollout_id', 'unknown')})"
    )
    prompt, completion, logprobs = step.prompt_token_ids, step.completion_token_ids, step.completion_logprobs
    if not prompt or not completion or logprobs is None:
        raise SelfplayError(
            f"{where} has no token ids or no log-probabilities; use a client that returns them"
        )
    if len(completion) != len(logprobs):
        raise SelfplayError(
            f"{where} has {len(completion)} sampled tokens but {len(logprobs)} log-probabilities; "
            "the fault lies with the client that answered"
        )
    legal_answers = step.info.get("legal_answers", [])
    finish_reason = step.info.get("finish_reason", "")
    goes_on = finish_reason == "length" and _goes_on(step.completion_text, legal_answers)
    return TrainingRecord(
        role_id=step.role_id,
        rollout_id=step.info.get("rollout_id", ""),
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=logprobs,
        reward=step.info.get("reward_stages", {}).get("step", step.reward),
        advantage=step.reward,
        turn=step.info.get("step_index", 0),
        legal_answers=legal_answers,
        prompt=step.prompt if legal_answers else [],
        policy_version=step.policy_version,
        policy=step.policy,
        temperature=step.temperature,
        meta={
            "pid": step.pid,
            "env_id": step.env_id,
            "finish_reason": finish_reason,
            **({"goes_on": True} if goes_on else {}),
        },
    )


def _goes_on(text: str, legal_answers: list[str]) -> bool:
    """Return whether a text begins with a legal answer and goes on after it."""
    rests = [text.strip().removeprefix(one) for one in legal_answers if text.strip().startswith(one)]
    return any(rest and not rest[0].isalnum() for rest in rests)
