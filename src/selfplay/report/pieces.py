"""Pieces of HTML that games and conversations share. All text written by a model is escaped."""

from collections.abc import Hashable, Iterable, Mapping
from html import escape
from typing import Any, TypeVar

from selfplay.read.rollouts import LoggedStep, Prompt

MAX_TURNS = 80
"""At most this many turns of a game or conversation are shown."""
MAX_TEXT = 6000
"""Longer texts are cut to this many characters."""

Key = TypeVar("Key", bound=Hashable)


def shared_beginnings(prompts: Mapping[Key, list[Prompt]]) -> dict[Key, Prompt]:
    """Return, by key, the messages with which every prompt of the key begins.

    A prompt's last message never counts, and a single prompt shares nothing.
    """
    found = {}
    for key, several in prompts.items():
        length = min(len(prompt) for prompt in several) - 1
        first = several[0]
        while length > 0 and any(prompt[:length] != first[:length] for prompt in several):
            length -= 1
        if length > 0 and len(several) > 1:
            found[key] = first[:length]
    return found


def messages_html(messages: Prompt) -> str:
    """Return chat messages, each under its role."""
    return "".join(
        f'<div class="message"><div class="label">{escape(message.get("role", ""))}</div>'
        f"<pre>{escape(clip(message.get('content', '')))}</pre></div>"
        for message in messages
    )


def logprob_html(step: LoggedStep | None) -> str:
    """Return the mean log-probability per token (natural logarithm) and the number of tokens."""
    if step is None or not step.completion_logprobs:
        return ""
    tokens = len(step.completion_logprobs)
    mean = sum(step.completion_logprobs) / tokens
    return f'<span class="muted right">mean log-prob {mean:.3f}, {counted(tokens, "token")}</span>'


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


def step_text(step: object) -> str:
    """Return the number of a step; empty for anything but a number, which only a foreign file contains."""
    if isinstance(step, float):
        return f"{step:.10g}"
    return str(step) if isinstance(step, int) else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
