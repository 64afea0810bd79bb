"""The messages of chat requests: checked and turned into the engine's.

Two things are ours: role ``text``, whose content is the whole prompt, without a template; and ``token_ids``,
the ids of an earlier answer as this server gave them, which then are in the prompt.
"""

from typing import Any

from selfplay.core import Message, Messages
from selfplay.core.messages import said
from selfplay.inference.server_parameters import (
    MESSAGE_NEUTRAL,
    PART_NEUTRAL,
    WITHOUT_EFFECT_IN_MESSAGES,
    check_extra,
)
from selfplay.inference.server_schema import ApiError

ROLES = ("system", "developer", "user", "assistant", "text")
_FIELDS = ("role", "content", "token_ids")
_PART_FIELDS = ("type", "text")


def to_messages(given: list[dict[str, Any]]) -> Messages:
    """Return messages in the engine's format.

    Raises:
        ApiError: the server does not have what one of them asks for.
    """
    return [_to_message(message, f"messages.{number}") for number, message in enumerate(given)]


def _to_message(given: dict[str, Any], where: str) -> Message:
    role = given.get("role")
    if role in ("tool", "function"):
        raise _wrong(f"{where}.role", f"{role}: this server has no tools", "Leave the message out")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"{role!r:.50} is not a role", f"Use one of {', '.join(ROLES)}")
    extra = {name: value for name, value in given.items() if name not in _FIELDS}
    check_extra(extra, _FIELDS, MESSAGE_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=f"{where}.")
    content = _text(given.get("content"), f"{where}.content")
    ids = given.get("token_ids")
    if ids is not None:
        _check_ids(ids, role, f"{where}.token_ids")
    # ``developer`` is OpenAI's newer name for ``system``; chat templates do not have it.
    return said("system" if role == "developer" else role, content, ids)


def _text(content: Any, where: str) -> str:
    """Return the text of a content, which is a text or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"{content!r:.50} is not a text", "Give a string or a list of text parts")
    return "".join(_part_text(part, f"{where}.{number}") for number, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise _wrong(where, f"{part!r:.50} is not a part", 'Use {"type": "text", "text": ...}')
    if part.get("type") != "text":
        raise _wrong(
            f"{where}.type", f"{part.get('type')!r:.50}: the models read only text", "Send text parts only"
        )
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text", f"{part.get('text')!r:.50} is not a text", "Give a string")
    extra = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    check_extra(extra, _PART_FIELDS, PART_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=f"{where}.")
    text: str = part["text"]
    return text


def _check_ids(ids: Any, role: str, where: str) -> None:
    if role != "assistant":
        raise _wrong(
            where, f"a message of role {role} was not drawn", "Send them with assistant messages only"
        )
    if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
        raise _wrong(where, "they are not token ids", "Give a list of whole numbers, 0 or more")


def _wrong(param: str, problem: str, fix: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}. {fix}", param=param)
