"""Questions: check the server's requests, and pass them to the engine.

Two things in messages are ours: role ``text``, whose content is the whole prompt, without a template; and
``token_ids``, the ids of an earlier answer as this server gave them, which then are in the prompt.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from sparring.core import CallSettings, InputError, Messages, ModelResponse, SparringError
from sparring.core.chat_tokens import most_characters_of_a_token
from sparring.core.concurrency import all_results
from sparring.core.messages import said
from sparring.core.types import UNSET
from sparring.engine.answer_stream import TokenTexts
from sparring.engine.answering import Answering, AnswerOptions, EngineCall
from sparring.engine.server_errors import (
    ApiError,
    context_length_exceeded,
    model_not_found,
    prompt_too_long,
)
from sparring.engine.server_requests import (
    AnswerRequest,
    ChatRequest,
    CompletionRequest,
    DrawParameters,
    GenerateRequest,
    check_extra,
)

Asked = TypeVar("Asked", bound=AnswerRequest)
LONG_PROMPT = 10_000
"""Prompts of more characters are tokenised in a thread, because that would keep other requests waiting."""


class Questions:
    """The connection between requests and the engine, whose models have additional names, ``aliases``.

    ``own`` are the temperature and the sampling of requests that leave them open. A request for token ids is
    not among them: whoever learns from an answer learns the distribution that it was drawn from.
    """

    def __init__(self, engine: Answering, aliases: Mapping[str, str], own: CallSettings = UNSET) -> None:
        self.engine = engine
        self.aliases = aliases
        self.own = own
        self.texts = TokenTexts(engine.tokenizer)
        self._most_characters = most_characters_of_a_token(engine.tokenizer)

    async def of_chat(self, request: ChatRequest) -> list[EngineCall]:
        """Check a request and render its prompt. Raises ApiError; InputError: it cannot be rendered."""
        model, request = self._checked(request), self._completed(request)
        limit, number = self.engine.max_context, len(request.messages)
        if number > limit:
            raise prompt_too_long(limit, f"prompt has {number} messages", "messages")
        messages = request.checked_messages()
        calls = await self._calls(request, model, messages, "messages", request.limit(), request.options())
        budget = request.thinking_token_budget
        return calls if budget is None else [replace(call, max_reasoning=budget) for call in calls]

    async def of_completion(self, request: CompletionRequest) -> list[EngineCall]:
        """Check a request and tokenise its prompts."""
        model, request = self._checked(request), self._completed(request)
        calls: list[EngineCall] = []
        for given in request.prompt:
            prompt = [said("text", given) if isinstance(given, str) else said("text", "", given)]
            options = request.options()
            calls += await self._calls(request, model, prompt, "prompt", request.max_tokens, options)
        return calls

    async def of_generation(self, request: GenerateRequest) -> list[EngineCall]:
        """Check a request for token ids."""
        parameters = request.sampling_params
        check_extra(request.model_extra or {}, type(request).model_fields)
        parameters.check(self.engine.vocabulary_size, "sampling_params.")
        model = self.served_name(request.model)
        prompt = [said("text", "", request.token_ids)]
        options = parameters.options_of(parameters.logprobs, as_drawn=True)
        return await self._calls(parameters, model, prompt, "token_ids", parameters.max_tokens, options)

    async def answers(self, calls: list[EngineCall]) -> list[ModelResponse]:
        """Return all answers, complete. Raises ApiError: the queue is full, or the engine failed."""
        try:
            return await all_results(map(self.engine.answer, calls))
        except SparringError as error:
            raise _unavailable(error) from error

    async def stream(self, calls: list[EngineCall]) -> AsyncGenerator[tuple[int, ModelResponse]]:
        """Yield parts of all answers as they are drawn, with the index of the answer. Closing a stream early
        cancels its requests. Raises ApiError: the queue is full, or the engine failed."""
        news: asyncio.Queue[tuple[int, ModelResponse | Exception]] = asyncio.Queue()
        readers = [asyncio.create_task(self._read(call, index, news)) for index, call in enumerate(calls)]
        unfinished = len(readers)
        try:
            while unfinished:
                index, part = await news.get()
                if isinstance(part, SparringError):
                    raise _unavailable(part) from part
                if isinstance(part, Exception):
                    raise part
                unfinished -= part.finish_reason != ""
                yield index, part
        finally:
            for reader in readers:
                reader.cancel()

    async def _read(
        self, call: EngineCall, index: int, news: "asyncio.Queue[tuple[int, ModelResponse | Exception]]"
    ) -> None:
        stream = self.engine.stream(call)
        try:
            async with aclosing(stream):
                async for part in stream:
                    news.put_nowait((index, part))
        except Exception as error:  # noqa: BLE001 (every error goes to the waiting caller)
            news.put_nowait((index, error))

    def _checked(self, request: AnswerRequest) -> str:
        request.check(self.engine.vocabulary_size)
        return self.served_name(request.model)

    def _completed(self, request: Asked) -> Asked:
        return request if request.as_drawn() else request.drawn_by(self.own)

    def served_name(self, name: str) -> str:
        """Return the name under which the engine serves a model. Raises ApiError: it does not."""
        served = self.engine.names()
        found = name if name in served else self.aliases.get(name)
        if found not in served:
            raise model_not_found(name, served)
        return found

    async def _calls(
        self,
        request: DrawParameters,
        model: str,
        messages: Messages,
        param: str,
        asked: int | None,
        options: AnswerOptions,
    ) -> list[EngineCall]:
        """Return a call for each answer to a prompt, which the parameter ``param`` gave."""
        self._check_prompt(messages, param)
        try:
            limit, prompt_tokens = self.engine.max_context, await self._tokens_of(messages)
        except InputError as error:
            raise InputError(param, error.problem, error.fix) from error
        max_tokens = max(1, min(self.engine.max_tokens, limit - prompt_tokens)) if asked is None else asked
        if prompt_tokens + max_tokens > limit:
            raise context_length_exceeded(limit, prompt_tokens, max_tokens, param)
        temperature, stop = 1.0 if request.temperature is None else request.temperature, tuple(request.stop)
        call = EngineCall(messages, temperature, max_tokens, model=model, stop=stop, options=options)
        return [replace(call, seed=seed) for seed in request.seeds()]

    async def _tokens_of(self, messages: Messages) -> int:
        """Return the number of tokens of a prompt. The engine then finds it rendered in the cache."""
        if _characters(messages) + _token_ids(messages) > LONG_PROMPT:
            return len(await asyncio.to_thread(self.engine.render, messages))
        return len(self.engine.render(messages))

    def _check_prompt(self, messages: Messages, param: str) -> None:
        """Refuse a prompt that cannot fit into the context without rendering it, which takes seconds, and
        token ids that the model does not have."""
        limit, size = self.engine.max_context, self.engine.vocabulary_size
        characters, ids = _characters(messages), _token_ids(messages)
        if ids > limit or characters > limit * self._most_characters:
            given = f"{len(messages)} messages have" if param == "messages" else f"{param} has"
            given += f" {characters} characters" + (f" and {ids} token ids" if ids else "")
            raise prompt_too_long(limit, given, param)
        for number, message in enumerate(messages):
            largest = max(message.get("token_ids", ()), default=0)
            if largest >= size:
                place = f"messages.{number}.token_ids" if param == "messages" else param
                raise ApiError(400, f"{place}: {largest} is not one of the {size} tokens", param=place)


def _characters(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)


def _token_ids(messages: Messages) -> int:
    return sum(len(message.get("token_ids", ())) for message in messages)


def _unavailable(error: SparringError) -> ApiError:
    return ApiError(503, str(error), headers={"Retry-After": "1"})
