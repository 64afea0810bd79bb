"""The last finished game of a rollout log in a readable form, turn by turn."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from selfplay.read.conversations import ProgramRollout
from selfplay.read.rollouts import Extras, LoggedRollout, LoggedStep, Turn, number_of
from selfplay.report.games import turns_with_steps

TAIL_BYTES = 1 << 23
"""At most this many bytes at the end of a log are read."""
MAX_PARTS = 12
"""At most this many sub-episodes of an episode are shown."""
MAX_NOTED = 60
"""Longer values in a program's extras are not shown."""
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Spoken:
    """One turn: what the speaker heard and said, and the resulting action.

    ``seat`` distinguishes speakers (-1 is the environment). ``marks`` name faults. ``note`` describes the
    tokens.
    """

    speaker: str
    text: str
    seat: int = -1
    heard: str = ""
    action: str | None = None
    marks: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class ReadableGame:
    """A game, or a conversation with the sub-episodes it spawned (``parts``, with ``parts_left_out``)."""

    step: int
    title: str
    turns: list[Spoken] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    ending: str = ""
    error: str = ""
    parts: list["ReadableGame"] = field(default_factory=list)
    parts_left_out: int = 0


class _Head(msgspec.Struct):
    """A log line decoded only as far as the tree requires, which is fast."""

    class _Rollout(msgspec.Struct):
        id: str = ""
        meta: dict[str, Any] = {}

    rollout: _Rollout


class _Line(msgspec.Struct):
    rollout: ProgramRollout


@dataclass
class _Tree:
    """The lines of an episode and its descendants, and whether the episode failed."""

    failed: bool
    lines: list[bytes] = field(default_factory=list)


def last_game(path: Path) -> ReadableGame | None:
    """Return the last game of a log file that was played to its end, or else the last failed game.

    Damaged lines are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    trees = _trees(_last_lines(path))[::-1]
    for tree in [*(one for one in trees if not one.failed), *(one for one in trees if one.failed)]:
        rollouts = [rollout for line in tree.lines if (rollout := _decode(line)) is not None]
        if rollouts:
            return _readable(rollouts, number_of(path))
    return None


def _last_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).splitlines()
    return lines if size <= TAIL_BYTES else lines[1:]


def _trees(lines: list[bytes]) -> list[_Tree]:
    """Group lines by top-level episode. Children follow their parent."""
    trees: list[_Tree] = []
    tree_of: dict[str, _Tree] = {}
    for line in lines:
        try:
            head = msgspec.json.decode(line, type=_Head).rollout
        except msgspec.DecodeError:
            continue
        tree = tree_of.get(str(head.meta.get("parent_id")))
        if tree is None:
            tree = _Tree(bool(head.meta.get("error")))
            trees.append(tree)
        tree.lines.append(line)
        tree_of[head.id] = tree
    return trees


def _decode(line: bytes) -> ProgramRollout | None:
    try:
        return msgspec.json.decode(line, type=_Line).rollout
    except msgspec.DecodeError:
        return None


def _readable(rollouts: list[ProgramRollout], step: int) -> ReadableGame:
    """Return the first rollout as a game, with the others as its parts."""
    first, parts = rollouts[0], rollouts[1:]
    turns = _recorded_turns(first)
    return ReadableGame(
        step,
        _title(first),
        _game_turns(first, turns) if turns else _conversation(first),
        _rewards(first),
        _ending(first),
        first.error,
        [_readable([part], step) for part in parts[:MAX_PARTS]],
        len(parts[MAX_PARTS:]),
    )


def _title(rollout: ProgramRollout) -> str:
    uids = rollout.meta.get("uids")
    names = list(dict.fromkeys(map(str, uids))) if isinstance(uids, list) else []
    who = " against ".join(names) if len(names) > 1 else "".join(f"{name} in every seat" for name in names)
    return f"{rollout.episode_type or 'episode'}{': ' if who else ''}{who}"


def _recorded_turns(rollout: ProgramRollout) -> list[Turn]:
    """Return the turns recorded by a game; empty if the rollout is not a game."""
    try:
        return msgspec.convert(rollout.extras.get("turns"), list[Turn])
    except msgspec.ValidationError:
        return []


def _game_turns(rollout: ProgramRollout, turns: list[Turn]) -> list[Spoken]:
    game = LoggedRollout(steps=rollout.steps, extras=Extras(turns=turns))
    return [_game_turn(turn, step) for turn, step in turns_with_steps(game)]


def _game_turn(turn: Turn, step: LoggedStep | None) -> Spoken:
    who = "trained" if turn.kind == "policy" else turn.model or turn.kind or "opponent"
    marks = ["malformed"] if turn.well_formed is False and turn.kind == "policy" else []
    marks += ["invalid"] if turn.invalid else []
    return Spoken(
        f"seat {turn.pid}, {who}",
        turn.text if turn.text is not None else turn.action or "",
        turn.pid,
        (turn.observation or "").strip("\n"),
        turn.action,
        tuple(marks),
        _tokens_note(step),
    )


def _conversation(rollout: ProgramRollout) -> list[Spoken]:
    """Return the transcript or, without one, every model call with the last message of its prompt."""
    names = list(dict.fromkeys(step.role_id for step in rollout.steps))
    said = rollout.transcript
    if said:
        return [
            Spoken(
                (one.author or ENVIRONMENT) + (f" to {one.to}" if one.to else ""),
                one.text,
                names.index(one.author) if one.author in names else -1,
            )
            for one in said
        ]
    return [
        Spoken(
            step.role_id,
            _text_of(step.completion),
            names.index(step.role_id),
            _text_of(step.prompt[-1:]),
            note=_tokens_note(step),
        )
        for step in rollout.steps
    ]


def _text_of(messages: list[dict[str, str]]) -> str:
    return "".join(message.get("content", "") for message in messages)


def _tokens_note(step: LoggedStep | None) -> str:
    if step is None or not step.completion_logprobs:
        return ""
    count = len(step.completion_logprobs)
    mean = sum(step.completion_logprobs) / count
    return f"{count} token{'' if count == 1 else 's'}, mean log-prob {mean:.3f}"


def _rewards(rollout: ProgramRollout) -> dict[str, float]:
    """Return final rewards by seat for games, or else by role."""
    try:
        by_seat = msgspec.convert(rollout.extras.get("final_rewards"), dict[str, float])
    except msgspec.ValidationError:
        return rollout.rewards
    return {f"seat {pid}": reward for pid, reward in sorted(by_seat.items())}


def _ending(rollout: ProgramRollout) -> str:
    """Return the game's own reason for its end, or the short values in a program's extras."""
    info = rollout.extras.get("game_info")
    if isinstance(info, dict):
        reasons = [one["reason"] for one in info.values() if isinstance(one, dict) and one.get("reason")]
        return str(reasons[0]) if reasons else ""
    noted = {name: value for name, value in rollout.extras.items() if isinstance(value, str | int | float)}
    texts = [f"{name.replace('_', ' ')}: {value}" for name, value in noted.items()]
    return ", ".join(text for text in texts if len(text) <= MAX_NOTED)
