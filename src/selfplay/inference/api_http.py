"""An HTTP client for APIs that reads no more of an answer than an answer can have."""

import zlib
from typing import Any

import openai

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

    Version 3 of ``openai`` passes it on as an error of its own kind; for version 2, see ``is_unusable``.
    """


def is_unusable(error: openai.APIConnectionError) -> bool:
    """Return whether version 2 of ``openai`` raised this error because of an unusable answer."""
    return isinstance(error.__cause__, UnusableAnswer)


class ApiHttpClient(openai.DefaultAsyncHttpxClient):
    """The HTTP client of the ``openai`` package, with limits on the size of answers, also unpacked.

    Args:
        trust_env: whether proxies are taken from the environment.
    """

    def __init__(self, *, trust_env: bool) -> None:
        super().__init__(trust_env=trust_env, headers={"accept-encoding": "gzip"})

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, follow redirects, and return the response with its whole content.

        ``Any`` stands for the types of httpx with version 2 of ``openai`` and of httpx2 with version 3.

        Raises:
            UnusableAnswer: the answer is too large, cannot be unpacked, or only leads elsewhere.
        """
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
    """Return at most one byte more than ``limit``."""
    if encoding == "identity":
        return packed
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnusableAnswer("the answer is encoded in a way that was not asked for")
    try:
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(packed, limit + 1)
    except zlib.error:
        raise UnusableAnswer("the answer cannot be unpacked") from None
