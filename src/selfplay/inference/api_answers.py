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


class Logprob(msgspec.Struct):
    """The log-probability of a token, in nats."""

    logprob: float


class Logprobs(msgspec.Struct):
    """The log-probabilities of a choice, one for each token."""

    content: list[Logprob] | None = None


class Choice(msgspec.Struct):
    """An answer."""

    message: Message
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct):
    """A chat completion as vLLM extends it: prompt ids beside the choices, sampled ids in the choice."""

    choices: list[Choice] | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


class Version(msgspec.Struct):
    """The version of the current policy."""

    version: int


class Damaged(Exception):
    """The answer is no JSON, for example because it was cut off."""


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(str(error)) from None
