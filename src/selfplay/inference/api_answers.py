"""Chat completions as servers send them: the few fields that are needed, with their types checked."""

from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")


class Part(msgspec.Struct):
    """A part of a content: text, a refusal, or something else, such as thoughts, which is left out."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct):
    """The message of a choice. Its reasoning is not read."""

    content: str | list[Part] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """What the model says. A refusal is what it says; a message without either is empty."""
        if isinstance(self.content, str):
            return self.content or self.refusal or ""
        parts = [part.text or part.refusal or "" for part in self.content or [] if part.type in _SAID]
        return "".join(parts) or self.refusal or ""


_SAID = ("text", "output_text", "refusal")
_SHOWN = 10_000
"""So much of an answer that is no JSON is looked at, for an error: the title of a page is near its begin."""


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob]


class Choice(msgspec.Struct):
    """An answer. One that a filter took may have no message."""

    message: Message | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Any = None
    error: Any = None

    @property
    def text(self) -> str:
        """What the model says.

        Raises:
            Unexpected: this is no answer of a chat.
        """
        if self.message is not None:
            return self.message.text
        if "content_filter" in (self.finish_reason or ""):
            return ""
        raise Unexpected("a choice has no message")

    @property
    def token_logprobs(self) -> list[float]:
        """The log-probabilities, one for each token, in nats; nothing if they have not OpenAI's form."""
        try:
            return [token.logprob for token in msgspec.convert(self.logprobs, _Logprobs).content]
        except msgspec.ValidationError:
            return []


class Completion(msgspec.Struct):
    """A chat completion as vLLM extends it: prompt ids beside the choices, sampled ids in the choice."""

    choices: list[Choice] | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


class Version(msgspec.Struct):
    """The version of the current policy."""

    version: int


class Damaged(Exception):
    """The answer is no JSON, for example because it was cut off; its text is what there is of it."""


class Unexpected(Exception):
    """The answer is JSON, but not of the kind that was asked for: this server answers in another way."""


def decoded(content: bytes | str, kind: type[Kind]) -> Kind:
    """Read an answer.

    Raises:
        Damaged: it is no JSON.
        Unexpected: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unexpected(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        begin = content[:_SHOWN]
        text = begin if isinstance(begin, str) else begin.decode(errors="replace")
        raise Damaged(text.strip() or "nothing") from None
