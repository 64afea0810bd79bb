"""Steps as they are sent: the prompt of one that continues the step before has only what is new.

Otherwise what is sent of a conversation would grow with the square of its turns.
"""

from collections.abc import Sequence
from copy import copy

from sparring.core import Step

LeftOut = list[tuple[int, int]]
"""How many messages and token ids each step's prompt leaves out; it begins with the role's last ones."""


def without_histories(steps: Sequence[Step]) -> tuple[list[Step], LeftOut]:
    """Return copies of steps, and what they leave out."""
    last: dict[str, Step] = {}
    short, left_out = [], []
    for step in steps:
        before = last.get(step.role_id)
        messages, ids = (0, 0) if before is None else _continued(before, step)
        last[step.role_id] = step
        short.append(step)
        if messages or ids:
            short[-1] = copy(step)
            short[-1].prompt = step.prompt[messages:]
            short[-1].prompt_token_ids = step.prompt_token_ids and step.prompt_token_ids[ids:]
        left_out.append((messages, ids))
    return short, left_out


def add_histories(steps: Sequence[Step], left_out: LeftOut) -> None:
    """Make the steps of :func:`without_histories` whole."""
    last: dict[str, Step] = {}
    for step, (messages, ids) in zip(steps, left_out, strict=True):
        if messages or ids:
            before = last[step.role_id]
            step.prompt = [*before.prompt[:messages], *step.prompt]
            if ids and step.prompt_token_ids is not None:
                step.prompt_token_ids = _history(before)[:ids] + step.prompt_token_ids
        last[step.role_id] = step


def _continued(before: Step, step: Step) -> tuple[int, int]:
    messages, history = len(before.prompt), _history(before)
    same_texts = len(step.prompt) > messages and step.prompt[:messages] == before.prompt
    same_ids = step.prompt_token_ids is not None and step.prompt_token_ids[: len(history)] == history
    return messages if same_texts else 0, len(history) if same_ids else 0


def _history(step: Step) -> list[int]:
    return [*(step.prompt_token_ids or ()), *(step.completion_token_ids or ())]
