"""ApiConnection: a connection to an API with OpenAI's routes, with its key, retries and limits.

The ``openai`` package handles HTTP. Retries are our own, because they also cover replies that are unreadable
or empty, and every wait has a limit.
"""

import asyncio
import contextlib
import json
import os
import random
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import openai
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from sparring.core import InputError, SparringError
from sparring.core.text import is_loopback
from sparring.engine.answering import TOKEN_VARIABLE
from sparring.engine.api_replies import Damaged, ServiceError, Unexpected, read_error, said_in, words_of

Answer = TypeVar("Answer")

NO_KEY = "no-key"
"""Sent if there is no key, because the ``openai`` package requires one."""
MAX_ANSWER = 32 * 2**20
"""Bytes of an answer: 100,000 tokens with their ids and log-probabilities have about half of them."""
MAX_ERROR = 2**16
"""Bytes of an error that are read; the rest is cut off."""
_MAX_REDIRECTS = 5
_GZIP_OR_ZLIB = 47
"""The bits with which zlib recognises either format by its head."""
_OF_THE_ENCODING = ("content-encoding", "content-length", "transfer-encoding")
_OPENROUTER = "openrouter.ai"
OPENAI = "api.openai.com"
_TINKER = "tinker.thinkingmachines.dev"
KEYS = {_OPENROUTER: "OPENROUTER_API_KEY", OPENAI: "OPENAI_API_KEY", _TINKER: "TINKER_API_KEY"}
"""The environment variables of the keys of hosts; those of others are in ``TOKEN_VARIABLE``."""
HOSTED = (_OPENROUTER, OPENAI)
"""Hosts that return no token ids, do not serve our adapters, and have no model called ``default``."""


class Fault(Exception):
    """A failure that a retry may resolve; ``retry_after`` is the wait in seconds that the server asks for."""

    def __init__(self, what: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(what)


class UnusableAnswer(openai.OpenAIError):
    """An answer that is too large or encoded in a way that was not asked for; asking again would not help."""


class ApiConnection:
    """A connection to an API. A question ends within ``tries`` tries of ``timeout`` seconds, with waits of
    ``backoff`` seconds, doubled each time, half of it random, and at most ``max_wait``, between them."""

    def __init__(
        self, key: str, base_url: str, *, timeout: float, tries: int, backoff: float, max_wait: float = 60.0
    ) -> None:
        self.key = key
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.max_wait = max_wait
        self._tries = tries
        self._window = wait_exponential(multiplier=backoff, max=max_wait)
        self._random = random.Random()
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self) -> openai.AsyncOpenAI:
        """Return the package's client, one for each event loop, because connections belong to their loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or loop is not self._loop:
            # Servers on this machine are not reached through a proxy.
            trust_env = not is_loopback(urlsplit(self.base_url).hostname or "")
            self._loop = loop
            self._client = openai.AsyncOpenAI(
                api_key=self.key,
                base_url=self.base_url,
                timeout=self.timeout,
                max_retries=0,
                http_client=_HttpClient(trust_env=trust_env, headers={"accept-encoding": "gzip"}),
            )
        return self._client

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = None

    async def ask(
        self,
        once: Callable[[openai.AsyncOpenAI], Awaitable[Answer]],
        verdict: Callable[[ServiceError], Exception],
        what: str,
        *,
        refused: type[SparringError],
        failure: type[SparringError] = SparringError,
        limit: float | None = None,
    ) -> Answer:
        """Try until there is an answer, an error that no retry would resolve, or no try left.

        Args:
            once: asks once.
            verdict: what an error of the API means: a :class:`Fault` if another try may succeed.
            what: begins the errors.
            refused: the type of an error for an answer that cannot be used.
            failure: the type of the error if no try succeeded.
            limit: seconds of one try, if it is limited as a whole.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=self._pause,
            retry=retry_if_exception_type(Fault),
            reraise=True,
        )
        try:
            return await retrying(self._once, once, verdict, limit)
        except Fault as fault:
            problem: SparringError = failure(f"{what}: {fault} (tries: {self._tries})")
        except UnusableAnswer as error:
            problem = refused(f"{what}: {error}")
        except Unexpected as error:
            problem = refused(f"{what}: the answer cannot be read: {error}")
        # Raised outside of the handler, so that the error is not chained to one that may contain the key.
        raise problem

    async def _once(
        self,
        once: Callable[[openai.AsyncOpenAI], Awaitable[Answer]],
        verdict: Callable[[ServiceError], Exception],
        limit: float | None,
    ) -> Answer:
        problem: Exception
        try:
            async with asyncio.timeout(limit):
                return await once(self.client())
        except (TimeoutError, openai.APITimeoutError):
            problem = Fault(f"no answer within {self.timeout:g} s")
        except openai.APIConnectionError as error:
            cause = error.__cause__
            # Version 2 of ``openai`` wraps an unusable answer, version 3 passes it on.
            problem = Fault(f"the connection failed: {words_of(cause, self.secret)}")
            if isinstance(cause, UnusableAnswer):
                problem = cause
        except openai.APIStatusError as error:
            problem = verdict(self.read(error))
        except Damaged as error:
            words = words_of(said_in(str(error)), self.secret)
            problem = Fault(f"the answer cannot be read: no JSON, but {words}")
        except (openai.APIResponseValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
            problem = Fault(f"the answer cannot be read: {words_of(error, self.secret)}")
        raise problem

    @property
    def secret(self) -> str:
        """The key, which is cut out of what a server says; empty if there is none."""
        return "" if self.key == NO_KEY else self.key

    def read(self, error: openai.APIStatusError) -> ServiceError:
        """Read an error from a bad status."""
        return read_error(error.status_code, error.body, error.response.headers, self.secret)

    def _pause(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        fault = state.outcome.exception()
        assert isinstance(fault, Fault)
        pause = self._window(state) * self._random.uniform(0.5, 1.0)
        return min(self.max_wait, fault.retry_after + pause)


class _HttpClient(openai.DefaultAsyncHttpxClient):
    """The HTTP client of the ``openai`` package, with limits on the size of answers, also unpacked."""

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, follow redirects, and return the response with its whole content.

        ``Any`` stands for types of httpx (``openai`` 2) and httpx2 (``openai`` 3).
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


def checked_address(base_url: str) -> SplitResult:
    """Return the parts of the address of an API. Raises InputError: it is not one."""
    if "?" in base_url or "#" in base_url:  # paths are appended, and would become part of it
        raise InputError("base_url", "contains a query or a fragment", "Leave it out; give a key as api_key")
    with contextlib.suppress(ValueError):  # raised for invalid brackets, ports and host names
        url = urlsplit(base_url)
        host = url.hostname or ""
        host.encode("idna")  # as the host's address is looked up later
        if url.scheme in ("http", "https") and host and url.port != 0:
            return url
    raise InputError("base_url", "is not an http address", "Give one such as http://127.0.0.1:8000/v1")


def key_of(host: str, given: str | None = None) -> tuple[str, str]:
    """Return the environment variable of the key of a host, and the key; ``api_key`` and the key if one is
    given. Raises InputError: it is not set, or cannot be sent."""
    name = KEYS.get(host, TOKEN_VARIABLE)
    if given:
        name, key = "api_key", given
    elif is_loopback(host):
        name, key = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE) or NO_KEY
    else:
        key = os.environ.get(name, "")
    if not key:
        fix = "Set it, or use a model on this machine: sparring serve, and OpenAIClient.for_local()"
        raise InputError(name, f"is not set, but {host} requires a key", fix)
    if not is_sendable(key):
        raise InputError(name, "contains a character that is invalid in a key", "Set it again")
    return name, key


def is_sendable(key: str) -> bool:
    """Return whether a key or token has only characters that a header can contain unchanged."""
    return key.isascii() and key.isprintable() and " " not in key
