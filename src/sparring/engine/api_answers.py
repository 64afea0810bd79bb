"""Chat completions as servers send them: of a bounded size, and with the types of their fields checked."""

import zlib
from typing import Any, TypeVar

import msgspec
import openai

Kind = TypeVar("Kind")


class Part(msgspec.Struct):
    """A part of a content: text, a refusal, or something else, such as thoughts, which is left out."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class ChoiceMessage(msgspec.Struct):
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

    message: ChoiceMessage | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Any = None
    error: Any = None

    @property
    def text(self) -> str:
        """What the model says. Raises Unexpected: this is no answer of a chat."""
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


class ApiCompletion(msgspec.Struct):
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
    """Read an answer. Raises Damaged: it is no JSON; Unexpected: it is something else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unexpected(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        begin = content[:_SHOWN]
        text = begin if isinstance(begin, str) else begin.decode(errors="replace")
        raise Damaged(text.strip() or "nothing") from None


MAX_ANSWER = 32 * 2**20
"""Bytes of an answer: 100,000 tokens with their ids and log-probabilities have about half of them."""
MAX_ERROR = 2**16
"""Bytes of an error that are read; the rest is cut off."""
_MAX_REDIRECTS = 5
_GZIP_OR_ZLIB = 47
"""The bits with which zlib recognises either format by its head."""
_OF_THE_ENCODING = ("content-encoding", "content-length", "transfer-encoding")


class UnusableAnswer(openai.OpenAIError):
    """An answer that is too large or encoded in a way that was not asked for; asking again would not help.
    Version 3 of ``openai`` passes it on; for version 2, see ``is_unusable``."""


def is_unusable(error: openai.APIConnectionError) -> bool:
    """Return whether version 2 of ``openai`` raised this error because of an unusable answer."""
    return isinstance(error.__cause__, UnusableAnswer)


class ApiHttpClient(openai.DefaultAsyncHttpxClient):
    """The HTTP client of the ``openai`` package, with limits on the size of answers, also unpacked."""

    def __init__(self, *, trust_env: bool) -> None:
        super().__init__(trust_env=trust_env, headers={"accept-encoding": "gzip"})

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, follow redirects, and return the response with its whole content. ``Any`` stands
        for types of httpx (``openai`` 2) and httpx2 (``openai`` 3)."""
        for _ in range(_MAX_REDIRECTS + 1):
            response = await super().send(request, **(options | {"stream": True, "follow_redirects": False}))
            content = await _content(response)
            if response.next_request is None:
                headers = response.headers.multi_items()
                kept = [(name, value) for name, value in headers if name.lower() not in _OF_THE_ENCODING]
                return type(response)(
                    response.status_code, headers=kept, content=content, request=response.request
                )
            request = response.next_request
        raise UnusableAnswer(f"it is redirected more than {_MAX_REDIRECTS} times")


async def _content(response: Any) -> bytes:
    limit = MAX_ANSWER if response.is_success else MAX_ERROR
    packed = bytearray()
    try:
        async for chunk in response.aiter_raw():
            packed += chunk
            if len(packed) > limit:
                break
    finally:
        await response.aclose()
    content = _unpacked(bytes(packed), response.headers.get("content-encoding", "identity").lower(), limit)
    if len(content) > limit and response.is_success:
        raise UnusableAnswer(f"the answer has more than {MAX_ANSWER >> 20} MiB")
    return content[:limit]


def _unpacked(packed: bytes, encoding: str, limit: int) -> bytes:
    if encoding == "identity":
        return packed
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnusableAnswer("the answer is encoded in a way that was not asked for")
    try:
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(packed, limit + 1)
    except zlib.error:
        raise UnusableAnswer("the answer cannot be unpacked") from None
