"""The turns of a conversation: who said what to whom, and the model call behind it."""

from dataclasses import dataclass

from selfplay.tracking.report_pieces import Prompt
from selfplay.tracking.report_program_rollouts import ProgramRollout, Said
from selfplay.tracking.report_rollouts import LoggedStep


@dataclass
class DialogueTurn:
    """Something said: by a role or, with ``author`` empty, by the environment; ``to`` all or one role.

    ``number`` counts what roles said, from 1. ``asked`` is what the role was asked, where no transcript says
    so. ``earlier`` is the number of the role's turn before, and ``known`` how many messages of the prompt
    stood in that turn's prompt already; 0 where the two do not begin alike.
    """

    author: str
    to: str
    text: str
    step: LoggedStep | None = None
    number: int = 0
    asked: str = ""
    earlier: int = 0
    known: int = 0


def dialogue(rollout: ProgramRollout) -> list[DialogueTurn]:
    """Return the turns of a rollout in order.

    A role's lines of the transcript meet its steps of the same text, or else its next step. Steps that the
    transcript does not have, all of them in an episode that is no chat, stand before the next one it has.
    """
    turns: list[DialogueTurn] = []
    waiting = list(rollout.steps)
    for said in rollout.transcript:
        place = _place_of(said, waiting)
        step = None if place is None else waiting[place]
        if place is not None:
            skipped, rest = _split(waiting[:place], said.author)
            turns += [_turn_of(one) for one in skipped]
            waiting = rest + waiting[place + 1 :]
        turns.append(DialogueTurn(said.author, said.to, said.text, step))
    turns += [_turn_of(step) for step in waiting]
    _number(turns)
    return turns


def answer_of(step: LoggedStep) -> str:
    """Return the text of a model's answer."""
    return "".join(message.get("content", "") for message in step.completion)


def _place_of(said: Said, waiting: list[LoggedStep]) -> int | None:
    """Return which step is behind what a role said; the environment and other speakers have none."""
    own = [place for place, step in enumerate(waiting) if said.author and step.role_id == said.author]
    alike = [place for place in own if answer_of(waiting[place]) == said.text]
    return next(iter(alike + own), None)


def _split(steps: list[LoggedStep], role_id: str) -> tuple[list[LoggedStep], list[LoggedStep]]:
    """Return a role's steps, and the others."""
    own = [step for step in steps if step.role_id == role_id]
    return own, [step for step in steps if step.role_id != role_id]


def _turn_of(step: LoggedStep) -> DialogueTurn:
    """Return a step that no transcript has, with the end of its prompt as what was asked."""
    last = step.prompt[-1] if step.prompt else {}
    asked = "" if last.get("role") == "assistant" else last.get("content", "")
    return DialogueTurn(step.role_id, "", answer_of(step), step, asked=asked)


def _number(turns: list[DialogueTurn]) -> None:
    """Count the turns of roles, and find how much of each prompt stood in the role's prompt before."""
    number = 0
    latest: dict[str, tuple[int, Prompt]] = {}
    for turn in turns:
        if not turn.author:
            continue
        number += 1
        turn.number = number
        if turn.step is None:
            continue
        earlier, prompt = latest.get(turn.author, (0, []))
        if prompt and turn.step.prompt[: len(prompt)] == prompt:
            turn.earlier, turn.known = earlier, len(prompt)
        latest[turn.author] = number, turn.step.prompt
