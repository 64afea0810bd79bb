"""Pieces of HTML that games and conversations share. Everything a model wrote is escaped."""

from collections.abc import Hashable, Mapping
from html import escape
from typing import Any, TypeVar

from selfplay.tracking.report_rollouts import LoggedStep

MAX_TURNS = 80
"""Of longer games and conversations only this many turns are shown."""
MAX_TEXT = 6000
"""Longer texts are cut to this many characters."""

Prompt = list[dict[str, str]]
Key = TypeVar("Key", bound=Hashable)


def shared_beginnings(prompts: Mapping[Key, list[Prompt]]) -> dict[Key, Prompt]:
    """Return, by key, the messages that every prompt of the key begins with.

    A prompt's last message never counts, and a single prompt has nothing to share.
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
    """Return the mean log-probability per token (natural logarithm), and how many tokens."""
    if step is None or not step.completion_logprobs:
        return ""
    tokens = len(step.completion_logprobs)
    mean = sum(step.completion_logprobs) / tokens
    return f'<span class="muted right">mean log-prob {mean:.3f}, {counted(tokens, "token")}</span>'


def clip(text: str | None) -> str:
    """Return a text, cut where it is very long."""
    text = text or ""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"


def signed(value: Any) -> str:
    """Return a signed number with three significant digits, or any other value as escaped text."""
    return f"{value:+.3g}" if isinstance(value, int | float) else escape(str(value))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, plural where it needs one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
