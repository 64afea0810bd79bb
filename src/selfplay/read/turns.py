"""The turns of a logged game or conversation, each with the model call behind it."""

from collections import defaultdict
from dataclasses import dataclass

from selfplay.core.adapters import AVERAGE, TRAINED
from selfplay.read.rollouts import LoggedRollout, LoggedStep, Prompt, Said, Turn

TRAINED_MODELS = (TRAINED, AVERAGE)
"""The names of the trained policy and of its average in evaluations."""


@dataclass
class DialogueTurn:
    """One utterance of a role or, with an empty ``author``, of the environment; ``to`` is empty for all.

    ``number`` counts the turns of roles, from 1. ``asked`` is the question to the role, for episodes without
    a transcript. ``earlier`` is the number of the role's previous turn, and ``known`` the number of messages
    that this prompt shares with that turn's prompt; 0 if the two do not begin alike.
    """

    author: str
    to: str
    text: str
    step: LoggedStep | None = None
    number: int = 0
    asked: str = ""
    earlier: int = 0
    known: int = 0


def game_turns(rollout: LoggedRollout) -> list[tuple[Turn, LoggedStep | None]]:
    """Return the turns of a game in order, each with the model call behind it; scripts have none.

    The moves of a random opening are a script's too, whoever has the seat. A rollout without recorded turns
    gives one turn for each step.
    """
    turns = rollout.game.turns
    if not turns:
        return [(_move_of(step), step) for step in rollout.steps]
    waiting: defaultdict[int, list[LoggedStep]] = defaultdict(list)
    for step in reversed(rollout.steps):
        waiting[step.pid].append(step)
    return [
        (turn, waiting[turn.pid].pop() if waiting[turn.pid] and turn.kind != "script" else None)
        for turn in turns
    ]


def player_name(turn: Turn) -> str:
    """Name the player of a move: ``trained``, or the name or the kind of the opponent."""
    is_trained = turn.kind == "policy" or (turn.kind == "model" and turn.model in TRAINED_MODELS)
    return "trained" if is_trained else turn.model or turn.kind or "opponent"


def dialogue(rollout: LoggedRollout) -> list[DialogueTurn]:
    """Return the turns of a conversation in order.

    Each of a role's lines in the transcript is matched with its step of the same text, or else with its next
    step. Steps that are missing from the transcript (all of them in an episode that is not a chat) are placed
    before the role's next matched step.
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


def _move_of(step: LoggedStep) -> Turn:
    """Return a step as a move."""
    feedback = step.info.get("format_feedback")
    feedback = feedback if isinstance(feedback, dict) else {}
    action = step.info.get("extracted_action")
    return Turn(
        pid=step.pid,
        kind="policy",
        model=step.role_id,
        text=step.answer,
        action=None if action is None else str(action),
        well_formed=feedback.get("correct_answer_format"),
        invalid=bool(feedback.get("invalid_move")),
    )


def _place_of(said: Said, waiting: list[LoggedStep]) -> int | None:
    """Return the index of the step behind a line; lines of the environment have none."""
    own = [place for place, step in enumerate(waiting) if said.author and step.role_id == said.author]
    alike = [place for place in own if waiting[place].answer == said.text]
    return next(iter(alike + own), None)


def _split(steps: list[LoggedStep], role_id: str) -> tuple[list[LoggedStep], list[LoggedStep]]:
    """Return a role's steps, and the other steps."""
    own = [step for step in steps if step.role_id == role_id]
    return own, [step for step in steps if step.role_id != role_id]


def _turn_of(step: LoggedStep) -> DialogueTurn:
    """Return a turn for a step that is not in the transcript, with the end of its prompt as the question."""
    last = step.prompt[-1] if step.prompt else {}
    asked = "" if last.get("role") == "assistant" else last.get("content", "")
    return DialogueTurn(step.role_id, "", step.answer, step, asked=asked)


def _number(turns: list[DialogueTurn]) -> None:
    """Number the turns of roles, and find how much of each prompt the role's previous prompt contains."""
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
