"""Rendering of messages by a chat template so that no content becomes a control token.

A template is a program that may look into contents, for example to cut the thoughts out of earlier answers.
It has to read them as they are, but what it leaves of them must not spell a control token. So the messages
are rendered with a break in every content at each place where a control token could begin: the control tokens
of this text are the template's own, whatever it cut out or joined. Then they are rendered with as few breaks
as possible. The first text with the same control tokens is the right one, because no content added any.
"""

from collections.abc import Callable
from functools import partial

from sparring.core.control_tokens import BREAK, ControlTokens
from sparring.core.errors import InputError
from sparring.core.messages import Messages

Template = Callable[[Messages], str]
"""Renders a conversation, or raises InputError."""
Change = Callable[[str], str]


def rendered(control: ControlTokens, template: Template, messages: Messages) -> str:
    """Return the text of messages, in which the template's own control tokens have their new names.

    Args:
        control: the model's control tokens.
        template: the chat template.
        messages: messages whose contents hold no break.

    Raises:
        InputError: the template rejects the messages.
    """
    broken = _changed(
        messages, own=partial(control.with_breaks, own=True), others=partial(control.with_breaks, own=False)
    )
    safe = template(broken)
    if not any(BREAK in message["content"] for message in broken):
        return control.named(safe)
    allowed = control.written(safe)
    spelled = control.with_spelled_broken
    for own in (_as_it_is, partial(spelled, tags=False), spelled):
        try:
            text = template(_changed(messages, own=own, others=spelled))
        except InputError:
            continue  # a template may reject an answer with marks of its own; broken ones it takes as text
        if control.written(text) == allowed:
            return control.named(text)
    return control.named(safe)


def _changed(messages: Messages, *, own: Change, others: Change) -> Messages:
    """Return the messages with changed contents: the model's ``own``, and those of ``others``."""
    return [
        {
            "role": message["role"],
            "content": (own if message["role"] == "assistant" else others)(message["content"]),
        }
        for message in messages
    ]


def _as_it_is(content: str) -> str:
    return content
