"""Fields of a request that not every API takes; one that is rejected is sent in another form or left out."""

import re
from typing import Any

from selfplay.inference.api_errors import ApiError

TOKENS = "logprobs"
"""Stands for both fields that ask for token ids and log-probabilities."""
_TOKEN_FIELDS: dict[str, Any] = {"logprobs": True, "extra_body": {"return_token_ids": True}}

Request = dict[str, Any]


def with_tokens(request: Request) -> Request:
    """Return the request with the fields that ask for token ids and log-probabilities."""
    return request | _TOKEN_FIELDS


def in_form(request: Request, rejected: frozenset[str]) -> Request:
    """Return the request without the rejected fields; ``max_tokens`` gets its newer name instead."""
    left_out = rejected | (_TOKEN_FIELDS.keys() if TOKENS in rejected else set())
    form = {name: value for name, value in request.items() if name not in left_out}
    if "max_tokens" in request.keys() & rejected:
        form["max_completion_tokens"] = request["max_tokens"]
    return form


def rejected_field(error: ApiError, form: Request) -> str | None:
    """Return the field that an API rejects by its name and that the request can do without.

    A temperature of 1 is the default of the APIs that reject it; any other is not given up, nor are stop
    strings. A seed is at best a wish at an API that does not take one.
    """
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
