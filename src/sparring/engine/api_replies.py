"""Replies of APIs: chat completions of a bounded size with checked types, and what an error means.

An error is a bad status, or stands in place of the choices in a good answer. Its own code decides where it is
known, then its words, else the HTTP status.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeVar

import msgspec

from sparring.core.text import one_line

_SAID = ("message", "detail", "error", "errors", "error_msg", "msg", "title")
"""The fields that have words, the most telling first."""
_TITLE = re.compile(r"<title[^>]*>([^<]+)</title>", re.IGNORECASE)
_MAX_WORDS = 200
_MASKED = 6
"""So many characters of a key in a row are never shown."""


def told(body: Any) -> tuple[dict[str, Any], object]:
    """Return the fields of an error, and what it says; an aggregator adds the words of its provider."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    fields: dict[str, Any] = body if isinstance(body, dict) else {}
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return fields, f"{said_in(body)}: {raw}" if raw else said_in(body)


def said_in(body: Any) -> object:
    """Return what a body says: a text, the title of a page, the first field that has words, or all of it."""
    if isinstance(body, str):
        title = _TITLE.search(body) if body.lstrip().startswith("<") else None
        return f"the page {one_line(title[1])!r}" if title else body
    if isinstance(body, list) and body and all(isinstance(one, dict) for one in body):
        return "; ".join(str(said_in(one)) for one in body)
    found = next((body[name] for name in _SAID if body.get(name)), None) if isinstance(body, dict) else None
    if found is None:
        return body
    place = body.get("loc")  # where FastAPI found something wrong
    return f"{'.'.join(map(str, place))}: {said_in(found)}" if isinstance(place, list) else said_in(found)


def words_of(said: object, key: str) -> str:
    """Return what a server said in one line of at most 200 characters, without the key or a piece of it."""
    line = one_line(str(said))[: 2 * _MAX_WORDS]
    for length in range(len(key), _MASKED - 1, -1):
        for first in range(len(key) - length + 1):
            line = line.replace(key[first : first + length], "***")
    return line[:_MAX_WORDS].strip() or "no reason given"


Meaning = Literal["retry", "key", "account", "model", "context", "content", "request"]
"""``retry``: another try may succeed. ``key``, ``account`` and ``model``: no call of this client will.
``context`` and ``content``: these messages are too long, or refused. ``request``: anything else."""

_CODES: dict[str, Meaning] = {
    "insufficient_quota": "account",
    "exceeded_current_quota_error": "account",
    "insufficient_credits": "account",
    "insufficient_balance": "account",
    "credit_limit": "account",
    "billing_hard_limit_reached": "account",
    "billing_not_active": "account",
    "billing_error": "account",
    "budget_exceeded": "account",
    "model_terms_required": "account",
    "arrearage": "account",
    "access_terminated": "account",
    "account_deactivated": "account",
    "invalid_api_key": "key",
    "invalid_authentication": "key",
    "authentication_error": "key",
    "model_not_found": "model",
    "invalid_model": "model",
    "model_not_available": "model",
    "model_not_supported": "model",
    "model_decommissioned": "model",
    "deploymentnotfound": "model",
    "operationnotsupported": "model",
    "context_length_exceeded": "context",
    "exceed_context_size_error": "context",
    "content_filter": "content",
    "content_policy_violation": "content",
    "moderation_blocked": "content",
    "data_inspection_failed": "content",
    "rate_limit_exceeded": "retry",
    "rate_limit_error": "retry",
    "overloaded_error": "retry",
    "server_error": "retry",
}
"""By the fields ``code`` and ``type``, in small letters."""
_OF_THE_MESSAGES = (400, 413, 422)
_PHRASES: dict[Meaning, tuple[tuple[int, ...], re.Pattern[str]]] = {
    "context": (
        _OF_THE_MESSAGES,
        re.compile(
            r"context[ _]?(length|size|window|limit)|(prompt|input|string) (is )?too long|too many tokens"
            r"|maximum (model|prompt) length|input tokens? .{0,30}exceed|`inputs` .{0,30}must be"
        ),
    ),
    "key": (_OF_THE_MESSAGES, re.compile(r"(incorrect|invalid) api key|api key (not valid|expired)")),
    "account": (
        (*_OF_THE_MESSAGES, 429, 500, 503),
        re.compile(
            r"credit balance|insufficient (balance|credit|fund|quota)|spending limit"
            r"|location is not supported"
        ),
    ),
    "model": (
        _OF_THE_MESSAGES,
        re.compile(r"not a valid model id|invalid model name|model not exist|model identifier is invalid"),
    ),
    "content": ((*_OF_THE_MESSAGES, 403), re.compile("flagged")),
}
"""By the words, in small letters, of servers that give no code: the statuses for which they decide."""
_STATUSES: dict[int, Meaning] = {401: "key", 402: "account", 403: "account", 404: "model"}
_UNSUPPORTED = ("unsupported_parameter", "unsupported_value")
_OF_EVERY_CALL = ("temperature", "stop", "seed", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters that do not depend on the messages: one that is refused is refused again in the next call."""
_WAIT = re.compile(r"(?:retry|try again) (?:in|after) ([\d.]+) ?s")


@dataclass(frozen=True)
class ServiceError:
    """An error of an API: its HTTP status, its words in one line without the key, its ``code`` and ``type``
    in small letters, the parameter that it names, its whole text in small letters, and the seconds that it
    asks to wait.
    """

    status: int
    words: str
    codes: frozenset[str]
    param: str
    text: str
    retry_after: float = 0.0

    @property
    def meaning(self) -> Meaning:
        """What the error means for the call and for those that follow."""
        for code, meaning in _CODES.items():
            if code in self.codes and meaning != "retry":
                return meaning
        if self.param == "model" and self.status in _OF_THE_MESSAGES:
            return "model"
        for meaning, (statuses, phrase) in _PHRASES.items():
            # What ends the command is not looked for in the whole text, which may quote a prompt.
            where = self.text if meaning == "context" else self.words.lower()
            if self.status in statuses and phrase.search(where):
                return meaning
        if self.status in (408, 409, 429) or self.status >= 500:
            return "retry"
        if self.status in _STATUSES:
            return _STATUSES[self.status]
        # A request that is larger than the limit of a minute is as large in the next minute.
        wait = self.status != 413 and any(_CODES.get(code) == "retry" for code in self.codes)
        return "retry" if wait else "request"

    @property
    def is_of_these_messages(self) -> bool:
        """Whether a ``request`` is refused for its messages, so that the next one may be answered."""
        of_every_call = bool(self.codes & set(_UNSUPPORTED)) or self.param in _OF_EVERY_CALL
        return self.status in _OF_THE_MESSAGES and not of_every_call


def read_error(status: int, body: Any, headers: Mapping[str, str], key: str) -> ServiceError:
    """Read an error from its body, of any shape; ``key`` is cut out of its words. In a good answer, the
    body's number counts as the status."""
    try:
        (fields, said), text = told(body), str(body).lower()
    except RecursionError:
        fields, said, text = {}, "an error that is nested too deeply", ""
    codes = {str(fields[name]).lower() for name in ("code", "type", "status") if fields.get(name)}
    number = str(fields.get("code", ""))
    if status < 300:
        is_status = len(number) == 3 and number.isascii() and number.isdecimal() and number >= "400"
        status = int(number) if is_status else 500
    words = words_of(said, key)
    wait = _seconds_to_wait(headers) or _number((_WAIT.search(words.lower()) or ["", ""])[1])
    param = str(fields.get("param", ""))
    return ServiceError(status, words, frozenset(codes), param, text, wait)


def _seconds_to_wait(headers: Mapping[str, str]) -> float:
    """Return the longest wait that ``Retry-After`` (seconds or a date) and ``retry-after-ms`` ask for."""
    milliseconds = _number(headers.get("retry-after-ms", "")) / 1000
    given = headers.get("retry-after", "")
    try:
        date = parsedate_to_datetime(given)
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        seconds = _number(given)
    return max(0.0, milliseconds, seconds)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if number == number else 0.0  # not a number is not equal to itself


TOKENS = "logprobs"
"""Stands for both fields that ask for token ids and log-probabilities."""
_TOKEN_FIELDS: dict[str, Any] = {"logprobs": True, "extra_body": {"return_token_ids": True}}

FURTHER = "further"
"""The field of a request that holds fields which the library does not know."""
Request = dict[str, Any]


def with_tokens(request: Request) -> Request:
    """Return the request with the fields that ask for token ids and log-probabilities."""
    return request | _TOKEN_FIELDS


def in_form(request: Request, rejected: frozenset[str]) -> Request:
    """Return the request without the rejected fields; ``max_tokens`` gets its newer name instead."""
    left_out = rejected | (_TOKEN_FIELDS.keys() if TOKENS in rejected else set())
    form = {name: value for name, value in request.items() if name not in left_out}
    if further := form.pop(FURTHER, None):
        form["extra_body"] = form.get("extra_body", {}) | further
    if "max_tokens" in request.keys() & rejected:
        form["max_completion_tokens"] = request["max_tokens"]
    return form


def rejected_field(error: ServiceError, form: Request) -> str | None:
    """Return the field that an API rejects by its name and that the request can do without: of temperatures
    only 1, the default of the APIs that reject it."""
    if error.status not in (400, 403, 422) or error.meaning in ("context", "content", "key", "model"):
        return None
    if "max_tokens" in form and "max_completion_tokens" in error.text:
        return "max_tokens"
    if form.get("temperature") == 1.0 and "temperature" in error.text:
        return "temperature"
    if "seed" in form and re.search(r"\bseed\b", error.text):
        return "seed"
    if TOKENS in form and ("return_token_ids" in error.text or "logprobs" in error.text):
        return TOKENS
    return None


Kind = TypeVar("Kind")


class Part(msgspec.Struct):
    """A part of a content: text, a refusal, thoughts, or something else, which is left out."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None


class ChoiceMessage(msgspec.Struct):
    """The message of a choice."""

    content: str | list[Part] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None

    @property
    def thoughts(self) -> str:
        """What the model thought, where a server tells it apart: ``reasoning_content`` (DeepSeek, SGLang,
        vLLM), ``reasoning`` (OpenRouter, newer vLLM), or parts of the content (Mistral)."""
        for one in (self.reasoning_content, self.reasoning):
            if isinstance(one, str) and one:
                return one
        parts = self.content if isinstance(self.content, list) else []
        return "".join(_texts_in(part.thinking) for part in parts if part.type == "thinking")

    @property
    def text(self) -> str:
        """What the model says. A refusal is what it says; a message without either is empty."""
        if isinstance(self.content, str):
            return self.content or self.refusal or ""
        parts = [part.text or part.refusal or "" for part in self.content or [] if part.type in _SAYING]
        return "".join(parts) or self.refusal or ""


def _texts_in(thinking: Any) -> str:
    """Return the text of a part that is a thought: itself a text, or a list of text parts."""
    if isinstance(thinking, str):
        return thinking
    found = thinking if isinstance(thinking, list) else []
    texts = [one.get("text") for one in found if isinstance(one, dict)]
    return "".join(one for one in texts if isinstance(one, str))


_SAYING = ("text", "output_text", "refusal")
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
    def thoughts(self) -> str:
        """What the model thought before it spoke, where the server tells it apart."""
        return "" if self.message is None else self.message.thoughts

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
