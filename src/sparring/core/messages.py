"""Messages: what a model is asked, in the form of OpenAI's chat API, and what later prompts show of them.

A conversation is one sequence of token ids: a prompt begins with the last prompt and the answer to it, as it
was drawn. A role may forget on purpose.
"""

from typing import Literal, NotRequired, TypedDict, cast

from sparring.core.errors import shown
from sparring.core.reasoning import split


class Message(TypedDict):
    """An OpenAI-style chat message.

    ``token_ids`` are the ids with which a model said an assistant message, unchanged in later prompts. If it
    thought before it spoke, ``content`` is only what it said, ``reasoning`` what it thought, and ``written``
    the whole with its tags, which its own later prompts have in place of the content.
    """

    role: str
    content: str
    token_ids: NotRequired[list[int]]
    reasoning: NotRequired[str]
    written: NotRequired[str]


Messages = list[Message]
_TEXTS = ("role", "content", "reasoning", "written")


def listed(prompt: Messages | str) -> Messages:
    """Return a string as a single user message, and messages unchanged and unchecked."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def as_messages(prompt: Messages | str) -> Messages:
    """Return a string as a single user message, and messages unchanged.

    Raises TypeError if it is something else, and ValueError if a text has half a surrogate pair.
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
    """Return the messages of a prompt without token ids, for logs and for whoever reads only text."""
    for message in messages:
        if len(message) > 2:
            return [{"role": one["role"], "content": one.get("written", one["content"])} for one in messages]
    return messages


def as_answer(messages: Messages) -> Messages:
    """Return the messages of an answer as a step keeps them, without token ids: it has its own."""
    if all(len(one) == 2 for one in messages):
        return messages
    kept = [{name: one for name, one in message.items() if name in _TEXTS} for message in messages]
    return cast(Messages, kept)


def said(role: str, content: str, token_ids: list[int] | None = None, written: str | None = None) -> Message:
    """Return a message; an answer has its token ids and the whole that was written, if they are known."""
    message: Message = {"role": role, "content": content}
    if token_ids is not None:
        message["token_ids"] = token_ids
    if written is not None:
        message["written"] = written
    return message


History = Literal["keep", "drop_reasoning", "summary"]
"""How a role remembers its own answers.

``keep``: as they were drawn, with their token ids.
``drop_reasoning``: only what it said.
``summary``: the latest answer that has a text between ``<summary>`` and ``</summary>`` takes the place of
everything after the beginning and before it, and only that text is left of it. So a conversation without an
end fits into a context, and the role learns what to write down.
"""

_SUMMARY = ("<summary>", "</summary>")


def remembered(messages: Messages, history: History, beginning: int) -> Messages:
    """Return the messages of a prompt as ``history`` shows them; the first ``beginning`` ones are always
    unchanged."""
    if history == "drop_reasoning":
        return messages[:beginning] + [_without_reasoning(one) for one in messages[beginning:]]
    if history == "summary":
        for index in range(len(messages) - 1, beginning - 1, -1):
            found = _summary_in(messages[index]["content"])
            if found and messages[index]["role"] == "assistant":
                summary: Message = {"role": "assistant", "content": found}
                return [*messages[:beginning], summary, *messages[index + 1 :]]
    return messages


def _summary_in(text: str) -> str:
    """Return the first summary with its marks; empty without one."""
    opening, closing = _SUMMARY
    start = text.find(opening)
    stop = text.find(closing, max(start, 0))
    return text[start : stop + len(closing)] if 0 <= start < stop else ""


def _without_reasoning(message: Message) -> Message:
    """Return an answer without its reasoning; one that was cut while it reasoned has nothing else."""
    if "written" in message:
        return said("assistant", message["content"])
    if message["role"] != "assistant":
        return message
    parts = split(message["content"])
    return message if parts.reasoning is None else said("assistant", parts.said)
