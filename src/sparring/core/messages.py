"""Messages: what a model is asked, in the form of OpenAI's chat API."""

from typing import NotRequired, TypedDict

from sparring.core.errors import shown


class Message(TypedDict):
    """An OpenAI-style chat message.

    ``token_ids`` are the ids with which a model said an assistant message, as they were drawn: a later prompt
    has them unchanged, where it would otherwise have the ids of ``content``.
    """

    role: str
    content: str
    token_ids: NotRequired[list[int]]


Messages = list[Message]


def listed(prompt: Messages | str) -> Messages:
    """Return a string as a single user message, and messages unchanged and unchecked."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def as_messages(prompt: Messages | str) -> Messages:
    """Return a string as a single user message, and messages unchanged.

    Raises:
        TypeError: it is something else.
        ValueError: a text has half a surrogate pair, which no tokenizer can read.
    """
    messages = listed(prompt)
    if not isinstance(messages, list):
        raise TypeError(f"messages must be a list, not {shown(messages)}")
    for message in messages:
        # Every move of every game passes here, with all examples of its prompt.
        if type(message) is not dict or not _are_texts(message.get("role"), message.get("content")):
            _check_message(message)
    return messages


def _are_texts(role: object, content: object) -> bool:
    """Whether both are texts of ASCII, which need no further look."""
    return type(role) is str and type(content) is str and role.isascii() and content.isascii()


def _check_message(message: object) -> None:
    for field in ("role", "content"):
        text = message.get(field) if isinstance(message, dict) else None
        if not isinstance(text, str):
            raise TypeError(f"a message must have a text as its {field}: {shown(message)}")
        check_text(text)


def check_text(text: str) -> None:
    """Raise a ValueError if a text has half a surrogate pair, which no tokenizer and no file can take."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text contains {text[error.start]!r}, which is an unpaired surrogate") from error


def as_text(messages: Messages) -> Messages:
    """Return the messages without token ids, for logs and for whoever reads only text."""
    for message in messages:
        if "token_ids" in message:
            return [{"role": one["role"], "content": one["content"]} for one in messages]
    return messages


def said(role: str, content: str, token_ids: list[int] | None = None) -> Message:
    """Return a message, with the token ids of an answer if they are known."""
    if token_ids is None:
        return {"role": role, "content": content}
    return {"role": role, "content": content, "token_ids": token_ids}
