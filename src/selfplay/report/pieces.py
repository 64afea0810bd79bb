"""Pieces of HTML that games and conversations share. All text written by a model is escaped."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from selfplay.read.numbers import counted
from selfplay.read.rollouts import LoggedStep, Prompt

MAX_TURNS = 80
"""At most this many turns of a game or conversation are shown."""
MAX_TEXT = 6000
"""Longer texts are cut to this many characters."""
SHORT_LINE = 100
"""A text in a summary is cut to this many characters."""

Speaker = tuple[str, str]
"""An environment or a type of episodes, and one of its seats or roles."""


@dataclass(frozen=True)
class Shared:
    """What the games or conversations of a section share.

    Attributes:
        colours: the colour of each role, as a number.
        beginnings: the messages with which every prompt of a speaker begins, shown once.
        players: the seats or roles with rewards, by which the section can be filtered.
        is_evaluation: whether these are of an evaluation, which has no advantages.
    """

    colours: dict[str, int]
    beginnings: dict[Speaker, Prompt]
    players: list[str]
    is_evaluation: bool = False


def tiles_of(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Return a row of headline figures: each has a name, a value and a note."""
    return "".join(
        f'<div class="tile"><div class="tile-name">{escape(name)}</div>'
        f'<div class="tile-value">{escape(value)}</div><div class="tile-note">{escape(note)}</div></div>'
        for name, value, note in tiles
    )


def messages_html(messages: Prompt) -> str:
    """Return chat messages, each under its role."""
    return "".join(
        f'<div class="message"><div class="label">{escape(message.get("role", ""))}</div>'
        f"<pre>{escape(clip(message.get('content', '')))}</pre></div>"
        for message in messages
    )


def prompt_html(step: LoggedStep, known: int, note: str, more: str = "") -> str:
    """Return a step's folded prompt without its first ``known`` messages; the note says where they are."""
    if not step.prompt:
        return ""
    tokens = f", {counted(len(step.prompt_token_ids), 'token')}" if step.prompt_token_ids else ""
    head = f"Prompt ({counted(len(step.prompt), 'message')}{tokens}{more})"
    shown = messages_html(step.prompt[known:])
    note = f'<p class="muted">{note}</p>' if known else ""
    return f'<details class="fold"><summary>{head}</summary>{note}{shown}</details>'


def tokens_text(step: LoggedStep) -> str:
    """Return the mean log-probability per token and the number of tokens; empty without them."""
    if step.mean_logprob is None:
        return ""
    return f"mean log-prob {step.mean_logprob:.3f}, {counted(len(step.completion_logprobs or []), 'token')}"


def versions_html(versions: Iterable[int]) -> str:
    """Return the policy versions that played a step; empty if no policy did."""
    found = sorted(set(versions))
    if not found:
        return ""
    text = f"version {found[0]}" if len(found) == 1 else f"versions {found[0]} to {found[-1]}"
    return f' <span class="muted">played by policy {text}</span>'


def clip(text: str | None) -> str:
    """Return a text, cut to ``MAX_TEXT`` characters."""
    text = text or ""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"


def signed(value: Any) -> str:
    """Return a signed number with three significant digits, or any other value as escaped text."""
    return f"{value:+.3g}" if isinstance(value, int | float) else escape(str(value))


def role_html(role: str, shared: Shared) -> str:
    """Name a role in its colour."""
    return f'<span class="seat seat-{shared.colours.get(role, 0)}">{escape(role)}</span>'


def in_a_line(text: str) -> str:
    """Return the beginning of a text, without line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT_LINE else f"{line[:SHORT_LINE]}…"
