"""What an API's error means: decided by the error's own code where it has one that is known, else by the
HTTP status.

An error is the whole of a bad status, or stands in place of the choices in a good one. Servers differ in its
place and shape; ``read_error`` knows OpenAI's, vLLM's, Mistral's, Gemini's and FastAPI's.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from selfplay.core.text import one_line

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
    "arrearage": "account",
    "access_terminated": "account",
    "account_deactivated": "account",
    "invalid_api_key": "key",
    "invalid_authentication": "key",
    "authentication_error": "key",
    "model_not_found": "model",
    "invalid_model": "model",
    "deploymentnotfound": "model",
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
_PHRASES: dict[str, Meaning] = {
    "maximum context length": "context",
    "context_length_exceeded": "context",
    "exceed_context_size": "context",
    "is not a valid model id": "model",
    "flagged": "content",
}
"""By the words, in small letters, of servers that give no code."""
_OF_THE_MESSAGES = (400, 413, 422)
_STATUSES_WITHOUT_CODES = {
    "context": _OF_THE_MESSAGES,
    "model": _OF_THE_MESSAGES,
    "content": (*_OF_THE_MESSAGES, 403),
}
"""The statuses for which words decide."""
_STATUSES: dict[int, Meaning] = {401: "key", 402: "account", 403: "account", 404: "model"}
_UNSUPPORTED = ("unsupported_parameter", "unsupported_value")
_MAX_WORDS = 200
_MASKED = 6
"""So many characters of a key in a row are never shown."""


@dataclass(frozen=True)
class ApiError:
    """An error of an API.

    Args:
        status: the HTTP status, or what the body says it is.
        words: what the server says, in one line without the key.
        codes: its ``code`` and ``type`` in small letters.
        text: its whole text in small letters, in which names of fields are looked for.
        retry_after: seconds that the server asks to wait, 0 or more.
    """

    status: int
    words: str
    codes: frozenset[str]
    text: str
    retry_after: float = 0.0

    @property
    def meaning(self) -> Meaning:
        """What the error means for the call and for those that follow."""
        for code, meaning in _CODES.items():
            if code in self.codes and meaning != "retry":
                return meaning
        for phrase, meaning in _PHRASES.items():
            if phrase in self.text and self.status in _STATUSES_WITHOUT_CODES[meaning]:
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
        return self.status in _OF_THE_MESSAGES and not self.codes & set(_UNSUPPORTED)


def read_error(status: int, body: Any, headers: Mapping[str, str], key: str) -> ApiError:
    """Read an error from its body, of any shape; ``key`` is cut out of its words.

    In a good answer, whose status says nothing, the body's number counts.
    """
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    fields = body if isinstance(body, dict) else {}
    codes = {str(fields[name]).lower() for name in ("code", "type", "status") if fields.get(name)}
    number = str(fields.get("code", ""))
    if status < 300:
        is_status = len(number) == 3 and number.isascii() and number.isdecimal() and number >= "400"
        status = int(number) if is_status else 500
    said = fields.get("message") or fields.get("detail") or fields or body
    return ApiError(
        status,
        words_of(said, key),
        frozenset(codes),
        str(body).lower(),
        _seconds_to_wait(headers),
    )


def words_of(said: object, key: str) -> str:
    """Return what a server said in one line of at most 200 characters, without the key or a piece of it."""
    line = one_line(str(said))[: 2 * _MAX_WORDS]
    for length in range(len(key), _MASKED - 1, -1):
        for first in range(len(key) - length + 1):
            line = line.replace(key[first : first + length], "***")
    return line[:_MAX_WORDS].strip() or "no reason given"


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
    """Return a number, or 0 for anything else."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if number == number else 0.0  # not a number is not equal to itself
