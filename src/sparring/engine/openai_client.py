"""OpenAIClient: a client of any server with OpenAI's chat completions. Retries are our own, because they also
cover answers that are unreadable or empty, and every wait has a limit."""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable, Mapping
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

from sparring.core import (
    ContextError,
    EpisodeError,
    InferenceClient,
    InputError,
    Messages,
    ModelResponse,
    SparringError,
    TransientError,
)
from sparring.core.adapters import TRAINED
from sparring.core.messages import as_text, said
from sparring.core.text import is_loopback, one_line, without_control_tokens
from sparring.engine.answering import TOKEN_VARIABLE, VERSION_HEADER
from sparring.engine.api_replies import (
    TOKENS,
    ApiCompletion,
    ApiHttpClient,
    Damaged,
    ServiceError,
    Unexpected,
    UnusableAnswer,
    Version,
    decoded,
    in_form,
    is_unusable,
    read_error,
    rejected_field,
    said_in,
    with_tokens,
    words_of,
)

Answer = TypeVar("Answer")

OPENROUTER_URL = "https://openrouter.ai/api/v1"
DEFAULT_MODEL = "openai/gpt-4o-mini"
"""The model at OpenRouter if neither a model nor an address is given."""
NO_KEY = "no-key"
"""Sent if there is no key, because the ``openai`` package requires one."""
_OPENROUTER = "openrouter.ai"
_OPENAI = "api.openai.com"
_HOSTED = (_OPENROUTER, _OPENAI)  # they return no token ids and do not serve our adapters
_MAX_REASON = 40
_MAX_DIGITS = 18


class _Fault(Exception):
    def __init__(self, what: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(what)


class _Refused(Exception):
    def __init__(self, what: str, error: ServiceError) -> None:
        self.error = error
        super().__init__(f"{what}: {error.words}")


class OpenAIClient(InferenceClient):
    """A client of OpenAI, OpenRouter, vLLM, llama.cpp, ``sparring serve`` or another compatible server.

    It keeps token ids and log-probabilities if the server returns all of them (vLLM with ``--logprobs-mode
    processed_logprobs --generation-config vllm``, ``sparring serve``); otherwise the three token fields of an
    answer are ``None``. ``sparring serve`` gets the ids of earlier answers back.

    Rate limits (429), server errors (5xx), broken connections, time-outs and damaged answers are tried again
    with exponential back-off, unless the error's own code calls it lasting. A call ends within ``(retries +
    1) * timeout + retries * max_wait`` seconds.

    The key is read from OPENROUTER_API_KEY for OpenRouter, from OPENAI_API_KEY for OpenAI, which alone gets
    it, and from SPARRING_API_KEY for other hosts; a server on this machine needs none.

    Args:
        api_key: the key, instead of the one in the environment. It is never shown.
        model: the served model that answers if a call names none or the policy ``default``;
            ``openai/gpt-4o-mini`` at OpenRouter, else ``default``, which ``sparring serve`` has.
        base_url: address of the API, including ``/v1``.
        timeout: maximum seconds of one try.
        models: names of served models by policy name. Other names are sent unchanged.
        retries: number of tries after the first.
        backoff: seconds before the second try, doubled for each further one; half of it is random.
        max_wait: maximum seconds between two tries. If a server asks for more, the call fails.
    """

    def __init__(
        self,
        api_key: str | None = None,
        model: str | None = None,
        base_url: str = OPENROUTER_URL,
        timeout: float = 60.0,
        *,
        models: Mapping[str, str] | None = None,
        retries: int = 5,
        backoff: float = 0.5,
        max_wait: float = 60.0,
    ) -> None:
        url = _checked(base_url)
        self.model = model or (DEFAULT_MODEL if base_url == OPENROUTER_URL else TRAINED)
        self.models = {TRAINED: self.model, **(models or {})}
        self._server = url.netloc.rpartition("@")[2]
        self._host = url.hostname or ""
        self._base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._tries = retries + 1
        self._max_wait = max_wait
        self._window = wait_exponential(multiplier=backoff, max=max_wait)
        self._random = random.Random()
        self._rejected: dict[str, frozenset[str]] = {}
        self._never_sent = frozenset({TOKENS} if self._host in _HOSTED else ())
        self._version = 0
        self._key_name, self._key = ("api_key", api_key) if api_key else _key_for(self._host)
        if not is_sendable(self._key):
            raise InputError(self._key_name, "contains a character that is invalid in a key", "Set it again")
        self._api: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def for_local(
        cls,
        port: int = 8000,
        timeout: float = 120.0,
        *,
        model: str = "default",
        models: Mapping[str, str] | None = None,
    ) -> "OpenAIClient":
        """Return a client of the server at this port of this machine, which needs no key."""
        return cls(model=model, base_url=f"http://127.0.0.1:{port}/v1", timeout=timeout, models=models)

    @classmethod
    def for_openrouter(cls, api_key: str | None = None, model: str = DEFAULT_MODEL) -> "OpenAIClient":
        """Return a client of OpenRouter."""
        return cls(api_key, model, OPENROUTER_URL)

    def __repr__(self) -> str:
        return f"OpenAIClient(model={self.model!r}, server={self._server!r})"

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> ModelResponse:
        """Answer ``messages``. The version is the server's for this answer, or the last that it gave. Only 31
        bits of ``seed`` are sent. Text that looks like a control token gets a space.

        A field that the server rejects by its name is sent in another form from then on: ``max_tokens`` as
        ``max_completion_tokens``; a temperature of 1, a seed and the fields for tokens not at all.

        Raises TransientError: no try got an answer; EpisodeError: these messages are refused; InputError: no
        call can succeed.
        """
        name = self.model if model is None else self.models.get(model, model)
        if name == TRAINED and self._host in _HOSTED:  # a model that nobody named is never paid for
            problem = f"is {TRAINED!r}, and {self._host} has no model of that name"
            raise InputError("model", problem, "Give the name of the model that is to answer")
        sent = _safe(as_text(messages) if self._host in _HOSTED else messages)
        request: dict[str, Any] = {"model": name, "messages": sent, "temperature": temperature}
        if max_tokens is not None:
            request["max_tokens"] = max_tokens
        if seed is not None:
            request["seed"] = seed % 2**31
        if stop:
            request["stop"] = list(stop)
        if return_tokens:
            request = with_tokens(request)
        return await self._retry(lambda: self._ask(request), f"model {name}", TransientError)

    async def get_policy_version(self) -> int:
        """Return the version at ``/adapters/version``, at the root of the server or below ``base_url``; 0
        from a server that answers anything else there. Raises SparringError: it cannot be reached;
        InputError: the key is wrong.
        """
        if self._host not in _HOSTED:
            self._version = await self._retry(self._ask_version, "adapters/version", SparringError)
        return self._version

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._api is not None and self._loop is asyncio.get_running_loop():
            await self._api.close()
        self._api = None

    def _connected(self) -> openai.AsyncOpenAI:
        """Return the package's client, one for each event loop, because connections belong to their loop."""
        loop = asyncio.get_running_loop()
        if self._api is None or loop is not self._loop:
            # Servers on this machine are not reached through a proxy.
            http_client = ApiHttpClient(trust_env=not is_loopback(self._host))
            self._loop = loop
            self._api = openai.AsyncOpenAI(
                api_key=self._key,
                base_url=self._base_url,
                timeout=self._timeout,
                max_retries=0,
                http_client=http_client,
            )
        return self._api

    async def _ask(self, request: dict[str, Any]) -> ModelResponse:
        name = request["model"]
        rejected = self._rejected.get(name, self._never_sent)
        while True:
            form = in_form(request, rejected)
            try:
                response = await self._send(form)
            except openai.APIStatusError as error:
                field = rejected_field(self._read(error), form)
                if field is None:
                    raise
                rejected |= {field}
            else:
                self._rejected[name] = self._rejected.get(name, rejected) | rejected
                return response

    async def _send(self, request: dict[str, Any]) -> ModelResponse:
        raw = await self._connected().chat.completions.with_raw_response.create(**request)
        headers = raw.http_response.headers
        answer = decoded(raw.http_response.content, ApiCompletion)
        status = raw.http_response.status_code
        if not answer.choices:
            body = answer.error or decoded(raw.http_response.content, dict)
            raise _Refused("the answer has no choices", read_error(status, body, headers, self._secret))
        choice = answer.choices[0]
        if choice.finish_reason == "error":
            error = read_error(status, choice.error or "", headers, self._secret)
            raise _Refused("the answer was cut short by an error", error)
        text = choice.text
        version = headers.get(VERSION_HEADER, "")
        is_version = version.isdecimal() and version.isascii() and len(version) <= _MAX_DIGITS
        kept_ids = choice.token_ids if version else None  # `sparring serve` takes them back
        response = ModelResponse(
            text,
            [said("assistant", text, kept_ids)],
            policy_version=int(version) if is_version else self._version,
            finish_reason=one_line(choice.finish_reason or "stop")[:_MAX_REASON],
        )
        logprobs = choice.token_logprobs
        if answer.prompt_token_ids and choice.token_ids and len(logprobs) == len(choice.token_ids):
            response.prompt_token_ids = answer.prompt_token_ids
            response.completion_token_ids = choice.token_ids
            response.completion_logprobs = logprobs
        return response

    async def _ask_version(self) -> int:
        root = self._base_url.removesuffix("/v1")
        for url in dict.fromkeys((root, self._base_url)):
            try:
                text = await self._connected().get(f"{url}/adapters/version", cast_to=str)
                return decoded(text, Version).version
            except (Damaged, Unexpected, UnusableAnswer):
                continue
            except openai.APIConnectionError as error:
                if not is_unusable(error):
                    raise
            except openai.APIStatusError as error:
                status = error.status_code
                if status == 401 or (self._read(error).meaning == "retry" and status != 501):
                    raise
        return 0

    async def _retry(
        self, ask: Callable[[], Awaitable[Answer]], about: str, failure: type[SparringError]
    ) -> Answer:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=self._pause,
            retry=retry_if_exception_type(_Fault),
            reraise=True,
        )
        try:
            return await retrying(self._try_once, ask, about)
        except _Fault as fault:
            what = f"{self._server}, {about}: {fault}"
        # Raised outside of the handler, so that the error is not chained to one that may contain the key.
        raise failure(f"{what} (tries: {self._tries})")

    async def _try_once(self, ask: Callable[[], Awaitable[Answer]], about: str) -> Answer:
        problem: Exception
        try:
            async with asyncio.timeout(self._timeout):
                return await ask()
        except (TimeoutError, openai.APITimeoutError):
            problem = _Fault(f"no answer within {self._timeout:g} s")
        except openai.APIConnectionError as error:
            words = words_of(error.__cause__, self._secret)
            problem = _Fault(f"the connection failed: {words}")
            if is_unusable(error):
                problem = EpisodeError(f"{self._server}, {about}: {words}")
        except openai.APIStatusError as error:
            problem = self._verdict(self._read(error), about)
        except _Refused as refused:
            problem = self._verdict(refused.error, about)
            if isinstance(problem, _Fault):
                problem = _Fault(str(refused), problem.retry_after)
        except Damaged as error:
            problem = _Fault(
                f"the answer cannot be read: no JSON, but {words_of(said_in(str(error)), self._secret)}"
            )
        except Unexpected as error:
            problem = EpisodeError(f"{self._server}, {about}: the answer cannot be read: {error}")
        except UnusableAnswer as error:
            problem = EpisodeError(f"{self._server}, {about}: {error}")
        raise problem

    @property
    def _secret(self) -> str:
        return "" if self._key == NO_KEY else self._key

    def _read(self, error: openai.APIStatusError) -> ServiceError:
        return read_error(error.status_code, error.body, error.response.headers, self._secret)

    def _verdict(self, error: ServiceError, about: str) -> Exception:
        what, words = f"{self._server}, {about}", f"{error.status}, {error.words}"
        match error.meaning:
            case "retry" if error.retry_after <= self._max_wait:
                return _Fault(words, error.retry_after)
            case "retry":
                asked = f"it asks to wait {error.retry_after:g} s; the limit is {self._max_wait:g} s"
                return TransientError(f"{what}: {words} ({asked})")
            case "context":
                return ContextError(f"{what}: {words}")
            case "content":
                return EpisodeError(f"{what}: {words}")
            case "request" if error.is_of_these_messages:
                return EpisodeError(f"{what}: {words}")
            case "key":
                # The server's message may contain a part of the key, so it is not shown.
                missing = f"is not set, but {self._server} requires a key ({error.status})"
                rejected = f"was rejected by {self._server} ({error.status})"
                problem = missing if self._key == NO_KEY else rejected
                return InputError(self._key_name, problem, "Set it to a key that this server accepts")
            case "model":
                fix = "Check the model's name and base_url"
            case "account":
                fix = "Check the account's credit and what its key may do"
            case _:
                fix = "Change what the server cannot do, or use another model"
        return InputError(what, words.rstrip("."), fix)

    def _pause(self, state: RetryCallState) -> float:
        assert state.outcome is not None
        fault = state.outcome.exception()
        assert isinstance(fault, _Fault)
        pause = self._window(state) * self._random.uniform(0.5, 1.0)
        return min(self._max_wait, fault.retry_after + pause)


def _checked(base_url: str) -> SplitResult:
    if "?" in base_url or "#" in base_url:  # paths are appended, and would become part of it
        raise InputError("base_url", "contains a query or a fragment", "Leave it out; give a key as api_key")
    with contextlib.suppress(ValueError):  # raised for invalid brackets, ports and host names
        url = urlsplit(base_url)
        host = url.hostname or ""
        host.encode("idna")  # as the host's address is looked up later
        if url.scheme in ("http", "https") and host and url.port != 0:
            return url
    raise InputError("base_url", "is not an http address", "Give one such as http://127.0.0.1:8000/v1")


def key_of(base_url: str) -> str:
    """Return the key for the API at an address, as :class:`OpenAIClient` finds it. Raises InputError: there
    is none."""
    return _key_for(_checked(base_url).hostname or "")[1]


def is_hosted(base_url: str) -> bool:
    """Return whether an address is OpenRouter's or OpenAI's, which have no model called ``default``."""
    return _checked(base_url).hostname in _HOSTED


def is_sendable(key: str) -> bool:
    """Return whether a key or token has only characters that a header can contain unchanged."""
    return key.isascii() and key.isprintable() and " " not in key


def _key_for(host: str) -> tuple[str, str]:
    if is_loopback(host):
        return TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE) or NO_KEY
    name = {_OPENROUTER: "OPENROUTER_API_KEY", _OPENAI: "OPENAI_API_KEY"}.get(host, TOKEN_VARIABLE)
    key = os.environ.get(name)
    if not key:
        fix = "Set it, or use a model on this machine: sparring serve, and OpenAIClient.for_local()"
        raise InputError(name, f"is not set, but {host} requires a key", fix)
    return name, key


def _safe(messages: Messages) -> Messages:
    return [
        {**one, "content": without_control_tokens(one["content"], own=one["role"] == "assistant")}
        for one in messages
    ]
