"""Messages: what a model is asked, in the form of OpenAI's chat API, and what later prompts show of them.

A conversation is one sequence of token ids: a prompt begins with the last prompt and the answer to it, as it
was drawn. A role may forget on purpose.
"""

import re
from typing import Literal, NotRequired, TypedDict

from sparring.core.errors import shown


class Message(TypedDict):
    """An OpenAI-style chat message.

    ``token_ids`` are the ids with which a model said an assistant message, unchanged in later prompts.
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


History = Literal["keep", "drop_reasoning", "summary"]
"""How a role remembers its own answers.

``keep``: as they were drawn, with their token ids.
``drop_reasoning``: without what they have between ``<think>`` and ``</think>``.
``summary``: the latest answer that has a text between ``<summary>`` and ``</summary>`` takes the place of
everything after the beginning and before it, and only that text is left of it. So a conversation without an
end fits into a context, and the role learns what to write down.
"""

_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)


def remembered(messages: Messages, history: History, beginning: int) -> Messages:
    """Return the messages of a prompt as ``history`` shows them; the first ``beginning`` ones are always
    unchanged."""
    if history == "drop_reasoning":
        return messages[:beginning] + [_without_reasoning(one) for one in messages[beginning:]]
    if history == "summary":
        for index in range(len(messages) - 1, beginning - 1, -1):
            found = _SUMMARY.search(messages[index]["content"])
            if found and messages[index]["role"] == "assistant":
                summary: Message = {"role": "assistant", "content": found[0]}
                return [*messages[:beginning], summary, *messages[index + 1 :]]
    return messages


def _without_reasoning(message: Message) -> Message:
    """Return an answer without its reasoning; one that was cut while it reasoned has nothing else."""
    content = message["content"]
    if message["role"] != "assistant" or ("<think>" not in content and "</think>" not in content):
        return message
    _, ended, answer = content.rpartition("</think>")
    rest = answer if ended else content.partition("<think>")[0]
    return {"role": "assistant", "content": rest.strip()}
