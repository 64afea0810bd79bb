"""The lines of a training file in OpenAI's two forms, checked.

Supervised: ``{"messages": [...]}``; a message of the assistant is trained on unless its ``weight`` is 0.
Preferences: ``{"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}`` with
one message of the assistant in each output. What could only be ignored (tools, names, images) is refused.
"""

from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparring.core import Message, Messages
from sparring.learn.fine_tuning.examples import Conversation, Preference, WrongLine

MAX_MESSAGES = 4096
Checked = TypeVar("Checked")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(BaseModel):
    """A text part of a message's content, the only kind: the models read only text."""

    type: Literal["text"]
    text: str


class _TrainingMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant", "text"]
    content: str | list[TextPart]
    weight: Literal[0, 1] | None = None

    def to_message(self) -> Message:
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class _Answer(_Strict):
    role: Literal["assistant"]
    content: str | list[TextPart]


class _Talk(_Strict):
    messages: list[_TrainingMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[Any] = Field(default=[], max_length=0)
    parallel_tool_calls: bool | None = None


class _Choice(_Strict):
    input: _Talk
    preferred_output: list[_Answer] = Field(min_length=1, max_length=1)
    non_preferred_output: list[_Answer] = Field(min_length=1, max_length=1)


def read_conversations(content: bytes) -> list[Conversation]:
    """Return the conversations of a file for the method ``supervised``. Raises WrongLine: the first one."""
    return _read(content, _conversation)


def read_preferences(content: bytes) -> list[Preference]:
    """Return the preferences of a file for the method ``dpo``. Raises WrongLine: the first one."""
    return _read(content, _preference)


def _read(content: bytes, check: Callable[[int, bytes], Checked]) -> list[Checked]:
    lines = content.removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    return [check(number, line) for number, line in enumerate(lines, 1)]


def _conversation(number: int, line: bytes) -> Conversation:
    talk = _parsed(number, line, _Talk)
    messages = _messages(number, talk)
    if messages[-1]["role"] != "assistant":
        raise WrongLine(number, "the last message must be the assistant's")
    trained = tuple(
        index for index, one in enumerate(talk.messages) if one.role == "assistant" and one.weight != 0
    )
    if not trained:
        raise WrongLine(number, "every message of the assistant has weight 0")
    if trained[0] == 0:
        raise WrongLine(number, "a message must come before the assistant's first")
    return Conversation(number, messages, trained)


def _preference(number: int, line: bytes) -> Preference:
    choice = _parsed(number, line, _Choice)
    messages = _messages(number, choice.input)
    if messages[-1]["role"] == "assistant":
        raise WrongLine(number, "input.messages must end before the assistant's message")
    if any(one.weight is not None for one in choice.input.messages):
        raise WrongLine(number, "weight is a field of supervised examples only")
    (good,), (bad,) = choice.preferred_output, choice.non_preferred_output
    answers = [_TrainingMessage(role=one.role, content=one.content).to_message() for one in (good, bad)]
    return Preference(number, messages, *answers)


def _messages(number: int, talk: _Talk) -> Messages:
    for index, one in enumerate(talk.messages):
        if one.weight is not None and one.role != "assistant":
            raise WrongLine(number, f"messages.{index}: only messages of the assistant have a weight")
        if one.role == "text" and (index or any(other.role != "assistant" for other in talk.messages[1:])):
            raise WrongLine(number, f"messages.{index}: a message of role text is a whole prompt")
    return [one.to_message() for one in talk.messages]


def _parsed(number: int, line: bytes, form: type[Checked]) -> Checked:
    if not line.strip():
        raise WrongLine(number, "it is empty")
    try:
        return form.model_validate_json(line)  # type: ignore[attr-defined, no-any-return]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WrongLine(number, f"{place}: {first['msg']}" if place else str(first["msg"])) from error
