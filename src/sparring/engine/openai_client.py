"""OpenAIClient: a client of any server with OpenAI's chat completions."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import openai

from sparring.core import (
    ContextError,
    EpisodeError,
    InferenceClient,
    InputError,
    Message,
    Messages,
    ModelResponse,
    TransientError,
)
from sparring.core.adapters import TRAINED
from sparring.core.messages import as_text, said
from sparring.core.reasoning import Parts, Reasoning, ReasoningTags, split
from sparring.core.sampling import AS_LEARNED, Sampling
from sparring.core.text import one_line, without_control_tokens
from sparring.engine.answering import VERSION_HEADER
from sparring.engine.api_connection import (
    HOSTED,
    OPENAI,
    ApiConnection,
    Fault,
    UnusableAnswer,
    checked_address,
    key_of,
)
from sparring.engine.api_replies import (
    FURTHER,
    TOKENS,
    ApiCompletion,
    Damaged,
    ServiceError,
    Unexpected,
    Version,
    decoded,
    in_form,
    read_error,
    rejected_field,
    with_tokens,
)

OPENROUTER_URL = "https://openrouter.ai/api/v1"
DEFAULT_MODEL = "openai/gpt-4o-mini"
"""The model at OpenRouter if neither a model nor an address is given."""
_MAX_REASON = 40
_MAX_DIGITS = 18


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
        url = checked_address(base_url)
        self.model = model or (DEFAULT_MODEL if base_url == OPENROUTER_URL else TRAINED)
        self.models = {TRAINED: self.model, **(models or {})}
        self._server = url.netloc.rpartition("@")[2]
        self._is_hosted = url.hostname in HOSTED
        self._rejected: dict[str, frozenset[str]] = {}
        self._never_sent = frozenset({TOKENS} if self._is_hosted else ())
        self._version = 0
        self._key_name, key = key_of(url.hostname or "", api_key)
        self._api = ApiConnection(
            key, base_url, timeout=timeout, tries=retries + 1, backoff=backoff, max_wait=max_wait
        )

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
        max_reasoning: int | None = None,
        sampling: Sampling | None = None,
        reasoning: ReasoningTags = "auto",
    ) -> ModelResponse:
        """Answer ``messages``. The version is the server's for this answer, or the last that it gave. Only 31
        bits of ``seed`` are sent. Text that looks like a control token gets a space.

        A field that the server rejects by its name is sent in another form from then on: ``max_tokens`` as
        ``max_completion_tokens``; a temperature of 1, a seed and the fields for tokens not at all.

        Raises TransientError: no try got an answer; EpisodeError: these messages are refused; InputError: no
        call can succeed.
        """
        name = self.model if model is None else self.models.get(model, model)
        if name == TRAINED and self._is_hosted:  # a model that nobody named is never paid for
            problem = f"is {TRAINED!r}, and {self._server} has no model of that name"
            raise InputError("model", problem, "Give the name of the model that is to answer")
        sent = _safe(as_text(messages) if self._is_hosted else messages)
        request: dict[str, Any] = {"model": name, "messages": sent, "temperature": temperature}
        if max_tokens is not None:
            request["max_tokens"] = max_tokens
        if seed is not None:
            request["seed"] = seed % 2**31
        if stop:
            request["stop"] = list(stop)
        further = self.beyond_openai(max_reasoning, sampling, reasoning)
        if sampling is not None and sampling.top_p != AS_LEARNED.top_p:
            request["top_p"] = sampling.top_p
        if further:
            request[FURTHER] = further
        if return_tokens:
            request = with_tokens(request)
        what = f"{self._server}, model {name}"
        response = await self._api.ask(
            lambda api: self._ask(api, request, what),
            lambda error: self._verdict(error, what),
            what,
            refused=EpisodeError,
            failure=TransientError,
            limit=self._api.timeout,
        )
        return response.read_by(reasoning)

    async def get_policy_version(self) -> int:
        """Return the version at ``/adapters/version``, at the root of the server or below ``base_url``; 0
        from a server that answers anything else there. Raises SparringError: it cannot be reached;
        InputError: the key is wrong.
        """
        if not self._is_hosted:
            what = f"{self._server}, adapters/version"
            self._version = await self._api.ask(
                self._ask_version,
                lambda error: self._verdict(error, what),
                what,
                refused=EpisodeError,
                limit=self._api.timeout,
            )
        return self._version

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._api.close()

    async def _ask(self, api: openai.AsyncOpenAI, request: dict[str, Any], what: str) -> ModelResponse:
        name = request["model"]
        rejected = self._rejected.get(name, self._never_sent)
        while True:
            form = in_form(request, rejected)
            try:
                response = await self._send(api, form, what)
            except openai.APIStatusError as error:
                field = rejected_field(self._api.read(error), form)
                if field is None:
                    raise
                rejected |= {field}
            else:
                self._rejected[name] = self._rejected.get(name, rejected) | rejected
                return response

    async def _send(self, api: openai.AsyncOpenAI, request: dict[str, Any], what: str) -> ModelResponse:
        raw = (await api.chat.completions.with_raw_response.create(**request)).http_response
        answer = decoded(raw.content, ApiCompletion)
        if not answer.choices:
            body = answer.error or decoded(raw.content, dict)
            raise self._error_inside("the answer has no choices", body, raw, what)
        choice = answer.choices[0]
        if choice.finish_reason == "error":
            raise self._error_inside("the answer was cut short by an error", choice.error or "", raw, what)
        text = choice.text
        version = raw.headers.get(VERSION_HEADER, "")
        is_version = version.isdecimal() and version.isascii() and len(version) <= _MAX_DIGITS
        kept_ids = choice.token_ids if version else None  # `sparring serve` takes them back
        response = ModelResponse(
            text,
            [said("assistant", text, kept_ids)],
            policy_version=int(version) if is_version else self._version,
            finish_reason=one_line(choice.finish_reason or "stop")[:_MAX_REASON],
        )
        if choice.thoughts:
            ended = bool(text) or response.finish_reason != "length"
            response = response.in_parts(Parts(text, Reasoning(choice.thoughts, ended)), None)
        else:
            response = response.in_parts(split(text), text)
        logprobs = choice.token_logprobs
        if answer.prompt_token_ids and choice.token_ids and len(logprobs) == len(choice.token_ids):
            response.prompt_token_ids = answer.prompt_token_ids
            response.completion_token_ids = choice.token_ids
            response.completion_logprobs = logprobs
        return response

    def beyond_openai(
        self, max_reasoning: int | None, sampling: Sampling | None, reasoning: ReasoningTags
    ) -> dict[str, Any]:
        """Return a call's fields that OpenAI's API does not have. Raises InputError: nor has this one."""
        further = {}
        if max_reasoning is not None and reasoning != "none":
            further = self._limit_of_thoughts(max_reasoning, reasoning)
        return further if sampling is None else further | self._beyond_top_p(sampling)

    def _limit_of_thoughts(self, tokens: int, reasoning: ReasoningTags) -> dict[str, Any]:
        """Return the fields that limit a thought: OpenRouter's, or vLLM's, which ``sparring serve`` has."""
        if reasoning != "auto":
            problem = f"is {tokens}, and {self._server} does not know thoughts that begin with {reasoning[0]}"
            raise InputError("max_reasoning", problem, "Leave it out, and limit max_tokens")
        if self._server == "openrouter.ai":
            return {"reasoning": {"max_tokens": tokens}}
        if self._is_hosted:
            problem = f"is {tokens}, and {self._server} has no such limit"
            raise InputError("max_reasoning", problem, "Leave it out, and limit max_tokens")
        return {"thinking_token_budget": tokens}

    def _beyond_top_p(self, sampling: Sampling) -> dict[str, Any]:
        """Return the fields of a sampling that OpenAI's API does not have, under the names that others share
        with vLLM, where they change something."""
        plain, asked = asdict(AS_LEARNED), asdict(replace(sampling, top_p=AS_LEARNED.top_p))
        further = {name: value for name, value in asked.items() if value != plain[name]}
        if further and self._server == OPENAI:
            problem = f"has {', '.join(further)}, which {self._server} does not know"
            raise InputError("sampling", problem, "Set only temperature and top_p")
        return further

    def _error_inside(self, how: str, body: Any, raw: Any, what: str) -> Exception:
        """Return the exception for an error in a good answer: in place of its choices, or in a choice."""
        error = read_error(raw.status_code, body, raw.headers, self._api.secret)
        problem = self._verdict(error, what)
        return Fault(f"{how}: {error.words}", problem.retry_after) if isinstance(problem, Fault) else problem

    async def _ask_version(self, api: openai.AsyncOpenAI) -> int:
        root = self._api.base_url.removesuffix("/v1")
        for url in dict.fromkeys((root, self._api.base_url)):
            try:
                text = await api.get(f"{url}/adapters/version", cast_to=str)
                return decoded(text, Version).version
            except (Damaged, Unexpected, UnusableAnswer):
                continue
            except openai.APIConnectionError as error:
                if not isinstance(error.__cause__, UnusableAnswer):
                    raise
            except openai.APIStatusError as error:
                status = error.status_code
                if status == 401 or (self._api.read(error).meaning == "retry" and status != 501):
                    raise
        return 0

    def _verdict(self, error: ServiceError, what: str) -> Exception:
        words, max_wait = f"{error.status}, {error.words}", self._api.max_wait
        match error.meaning:
            case "retry" if error.retry_after <= max_wait:
                return Fault(words, error.retry_after)
            case "retry":
                asked = f"it asks to wait {error.retry_after:g} s; the limit is {max_wait:g} s"
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
                problem = missing if not self._api.secret else rejected
                return InputError(self._key_name, problem, "Set it to a key that this server accepts")
            case "model":
                fix = "Check the model's name and base_url"
            case "account":
                fix = "Check the account's credit and what its key may do"
            case _:
                fix = "Change what the server cannot do, or use another model"
        return InputError(what, words.rstrip("."), fix)


def _safe(messages: Messages) -> Messages:
    return list(map(_safe_message, messages))


def _safe_message(message: Message) -> Message:
    own = message["role"] == "assistant"
    whole = message.get("written", message["content"])
    return said(message["role"], without_control_tokens(whole, own=own), message.get("token_ids"))
