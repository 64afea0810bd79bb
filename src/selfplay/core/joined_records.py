"""Join the answers of a conversation into one training record, where they are one sequence of token ids."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace

from selfplay.core.types import Answer, Step, TrainingRecord

_FIELDS = [field.name for field in fields(Answer)]


class _Conversation:
    """A record that grows. ``place`` is the smallest index of its answers among the records given."""

    def __init__(self, place: int, first: TrainingRecord) -> None:
        self.place = place
        self._first = self._last = first
        self._later: list[Answer] = []

    def takes(self, place: int, record: TrainingRecord) -> bool:
        """Append the record's answer if its prompt begins with everything so far; return whether it does."""
        so_far, drawn = self._last.prompt_token_ids, self._last.completion_token_ids
        if not _begins_with(record.prompt_token_ids, so_far, drawn):
            return False
        answer = Answer(**{name: getattr(record, name) for name in _FIELDS})
        answer.prompt_token_ids = record.prompt_token_ids[len(so_far) + len(drawn) :]
        self._later.append(answer)
        self._last = record
        self.place = min(self.place, place)
        return True

    def record(self) -> TrainingRecord:
        """Return the answers as one record."""
        return replace(self._first, later=self._later) if self._later else self._first


def joined(records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    """Return records in which the answers of a conversation are together.

    An answer continues another one of its role in its rollout if its prompt begins with that one's prompt and
    completion. Forty turns then have the tokens of one conversation, not of twenty. The records given have
    one answer each, may come in any order, and stay unchanged; those without a rollout are not joined.
    """
    talks_of: defaultdict[tuple[str, str, str, float], list[_Conversation]] = defaultdict(list)
    alone = []
    for place in sorted(range(len(records)), key=lambda place: len(records[place].prompt_token_ids)):
        record = records[place]
        if not record.rollout_id:
            alone.append(_Conversation(place, record))
            continue
        talks = talks_of[record.rollout_id, record.role_id, record.policy, record.temperature]
        if not any(talk.takes(place, record) for talk in reversed(talks)):
            talks.append(_Conversation(place, record))
    everything = [*alone, *(talk for talks in talks_of.values() for talk in talks)]
    return [talk.record() for talk in sorted(everything, key=lambda talk: talk.place)]


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
