"""What an API says in an error, found in bodies of many shapes, as words that can be shown.

Servers differ in the place and shape of an error. Those of OpenAI, vLLM, Mistral, Gemini, xAI and FastAPI are
read, and the pages of proxies.
"""

import re
from typing import Any

from selfplay.core.text import one_line

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
