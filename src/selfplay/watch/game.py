"""The last finished game or conversation as text, turn by turn."""

from dataclasses import dataclass

from textual.content import Content

from selfplay.core.text import printable
from selfplay.read.episodes import LoggedEpisode
from selfplay.read.numbers import counted
from selfplay.read.proofs import Proof, proof_of
from selfplay.read.rollouts import LoggedRollout, LoggedStep
from selfplay.read.turns import dialogue, game_turns, player_name
from selfplay.watch.plot import MUTED, Piece, colour_of, content_of

GLANCE_LINES = 12
"""The number of lines of an observation that are shown: the last ones, which hold the position."""
MAX_TEXT = 4000
"""Longer texts are cut to this many characters."""
MAX_NOTED = 60
"""Longer values in a program's extras are not shown."""
PART_INDENT = "    "
ENVIRONMENT = "environment"
NO_GAME = "No game has been logged yet."


@dataclass(frozen=True)
class _Spoken:
    """One turn: what the speaker heard and said, and the resulting action.

    ``seat`` distinguishes speakers (-1 is the environment). ``marks`` name faults.
    """

    speaker: str
    text: str
    seat: int
    heard: str = ""
    action: str | None = None
    marks: tuple[str, ...] = ()
    step: LoggedStep | None = None


def game_text(episode: LoggedEpisode | None, width: int) -> Content:
    """Return a game turn by turn, followed by its sub-episodes, wrapped to ``width`` characters."""
    if episode is None:
        return Content.styled(NO_GAME, MUTED)
    return content_of(_game_lines(episode, "", width))


def _game_lines(episode: LoggedEpisode, indent: str, width: int) -> list[list[Piece]]:
    rollout = episode.rollout
    rewards = (rollout.seat_rewards or rollout.rewards).items()
    shown = "   ".join(f"{name} {reward:+.3g}" for name, reward in rewards)
    lines: list[list[Piece]] = [[(f"{indent}{_title(rollout)}   ", "bold"), (shown, "bold $primary")], []]
    for number, turn in enumerate(_turns(rollout), start=1):
        lines += _turn_lines(number, turn, indent, width)
    for text, style in ((_ending(rollout), "italic"), (rollout.error, "$text-error")):
        if text:
            lines += [[(indent + line, style)] for line in _wrapped(text, width - len(indent))]
            lines.append([])
    for part in episode.children:
        lines += _game_lines(part, indent + PART_INDENT, width)
    if episode.left_out:
        lines.append([(f"{indent}{PART_INDENT}and {episode.left_out} more", MUTED)])
    return lines


def _title(rollout: LoggedRollout) -> str:
    uids = rollout.meta.get("uids")
    names = list(dict.fromkeys(map(str, uids))) if isinstance(uids, list) else []
    who = " against ".join(names) if len(names) > 1 else "".join(f"{name} in every seat" for name in names)
    return f"{rollout.episode_type or 'episode'}{': ' if who else ''}{who}"


def _turns(rollout: LoggedRollout) -> list[_Spoken]:
    """Return the moves of a game, the answers of a proof, or else the lines of a conversation."""
    proof = proof_of(rollout)
    if proof is not None:
        return _answers(proof)
    if not rollout.game.turns:
        names = list(dict.fromkeys(step.role_id for step in rollout.steps))
        return [
            _Spoken(
                (turn.author or ENVIRONMENT) + (f" to {turn.to}" if turn.to else ""),
                turn.text,
                names.index(turn.author) if turn.author in names else -1,
                turn.asked,
                step=turn.step,
            )
            for turn in dialogue(rollout)
        ]
    found = []
    for turn, step in game_turns(rollout):
        marks = ["malformed"] if turn.well_formed is False and turn.kind == "policy" else []
        marks += ["invalid"] if turn.invalid else []
        text = turn.text if turn.text is not None else turn.action or ""
        heard = (turn.observation or "").strip("\n")
        who = f"seat {turn.pid}, {player_name(turn)}"
        found.append(_Spoken(who, text, turn.pid, heard, turn.action, tuple(marks), step))
    return found


def _answers(proof: Proof) -> list[_Spoken]:
    """Return the claim, and what the agents answered."""
    names = list(dict.fromkeys(turn.agent for turn in proof.turns))
    found = [_Spoken("claim", proof.claim, -1, proof.question)]
    for turn in proof.turns:
        marks = ["invalid"] * (not turn.is_valid) + ["cut at the token limit"] * turn.is_cut
        named = len(turn.messages) > 1
        text = "\n".join(f"{channel}: {said}" if named else said for channel, said in turn.messages.items())
        seat = names.index(turn.agent)
        found.append(_Spoken(turn.agent, text or turn.raw, seat, marks=tuple(marks), step=turn.step))
    return found


def _ending(rollout: LoggedRollout) -> str:
    """Return a verdict beside the truth, a game's own reason for its end, or a program's short extras."""
    proof = proof_of(rollout)
    if proof is not None:
        branches = f" (the first of {proof.ends} branches)" if proof.ends > 1 else ""
        return f"{proof.outcome}; the claim is {proof.truth}{branches}"
    info = rollout.extras.get("game_info")
    if isinstance(info, dict):
        reasons = [one["reason"] for one in info.values() if isinstance(one, dict) and one.get("reason")]
        return str(reasons[0]) if reasons else ""
    noted = {name: value for name, value in rollout.extras.items() if isinstance(value, str | int | float)}
    texts = [f"{name.replace('_', ' ')}: {value}" for name, value in noted.items()]
    return ", ".join(text for text in texts if len(text) <= MAX_NOTED)


def _turn_lines(number: int, turn: _Spoken, indent: str, width: int) -> list[list[Piece]]:
    colour = colour_of(turn.seat)
    edge: Piece = (f"{indent}▌ ", colour)
    room = width - len(edge[0])
    head: list[Piece] = [edge, (f"{number}  {turn.speaker}", f"bold {colour}")]
    if turn.action is not None:
        head.append((f"  plays {_plain(turn.action).strip() or 'nothing'}", "bold"))
    head += [(f"  {mark}", "bold $text-error") for mark in turn.marks]
    lines = [[*head, (_tokens_note(turn.step), MUTED)]]
    heard = _wrapped(turn.heard, room)
    if len(heard) > GLANCE_LINES:
        heard = ["…", *heard[-GLANCE_LINES:]]
    lines += [[edge, (line, MUTED)] for line in heard]
    if turn.text != turn.action:
        lines += [[edge, (line, "")] for line in _wrapped(turn.text, room)]
    return [*lines, []]


def _tokens_note(step: LoggedStep | None) -> str:
    if step is None or not step.completion_logprobs:
        return ""
    return f"   {counted(len(step.completion_logprobs), 'token')}, mean log-prob {step.mean_logprob:.3f}"


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, with long lines broken between words."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"
    return [
        part.plain
        for line in (_plain(text).split("\n") if text else [])
        for part in (Content(line).wrap(max(8, width)) if line else [Content("")])
    ]


def _plain(text: str) -> str:
    """Return a printable text without tabs."""
    return printable(text.expandtabs(4), keep="\n")
