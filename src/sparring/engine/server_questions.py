"""Questions: check the server's requests, and pass them to the engine.

Two things in messages are ours: role ``text``, whose content is the whole prompt, without a template; and
``token_ids``, the ids of an earlier answer as this server gave them, which then are in the prompt.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sparring.core import InputError, Message, Messages, ModelResponse, SparringError
from sparring.core.chat_tokens import most_characters_of_a_token
from sparring.core.messages import said
from sparring.engine.answer_stream import TokenTexts
from sparring.engine.answering import Answering, AnswerOptions
from sparring.engine.server_http import (
    ApiError,
    context_length_exceeded,
    model_not_found,
    prompt_too_long,
)
from sparring.engine.server_requests import (
    MESSAGE_NEUTRAL,
    PART_NEUTRAL,
    WITHOUT_EFFECT_IN_MESSAGES,
    AnswerRequest,
    ChatRequest,
    CompletionRequest,
    DrawParameters,
    GenerateRequest,
    check_extra,
)

ROLES = ("system", "developer", "user", "assistant", "text")
_FIELDS = ("role", "content", "token_ids")
_PART_FIELDS = ("type", "text")


def to_messages(given: list[dict[str, Any]]) -> Messages:
    """Return messages in the engine's format. Raises ApiError."""
    return [_to_message(message, f"messages.{number}") for number, message in enumerate(given)]


def _to_message(given: dict[str, Any], where: str) -> Message:
    role = given.get("role")
    if role in ("tool", "function"):
        raise _wrong(f"{where}.role", f"{role}: this server has no tools", "Leave the message out")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"{role!r:.50} is not a role", f"Use one of {', '.join(ROLES)}")
    extra = {name: value for name, value in given.items() if name not in _FIELDS}
    check_extra(extra, _FIELDS, MESSAGE_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=f"{where}.")
    content = _text(given.get("content"), f"{where}.content")
    ids = given.get("token_ids")
    if ids is not None:
        _check_ids(ids, role, f"{where}.token_ids")
    # ``developer`` is OpenAI's newer name for ``system``; chat templates do not have it.
    return said("system" if role == "developer" else role, content, ids)


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"{content!r:.50} is not a text", "Give a string or a list of text parts")
    return "".join(_part_text(part, f"{where}.{number}") for number, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise _wrong(where, f"{part!r:.50} is not a part", 'Use {"type": "text", "text": ...}')
    if part.get("type") != "text":
        raise _wrong(
            f"{where}.type", f"{part.get('type')!r:.50}: the models read only text", "Send text parts only"
        )
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text", f"{part.get('text')!r:.50} is not a text", "Give a string")
    extra = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    check_extra(extra, _PART_FIELDS, PART_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=f"{where}.")
    text: str = part["text"]
    return text


def _check_ids(ids: Any, role: str, where: str) -> None:
    if role != "assistant":
        raise _wrong(
            where, f"a message of role {role} was not drawn", "Send them with assistant messages only"
        )
    if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
        raise _wrong(where, "they are not token ids", "Give a list of whole numbers, 0 or more")


def _wrong(param: str, problem: str, fix: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}. {fix}", param=param)


LONG_PROMPT = 10_000
"""Prompts of more characters are tokenised in a thread, because that would keep other requests waiting."""


@dataclass(frozen=True)
class EngineCall:
    """The arguments of a call of the engine."""

    messages: Messages
    max_tokens: int
    seed: int | None
    model: str
    temperature: float
    stop: tuple[str, ...]
    options: AnswerOptions


class Questions:
    """The connection between requests and the engine, whose models have additional names, ``aliases``."""

    def __init__(self, engine: Answering, aliases: Mapping[str, str]) -> None:
        self.engine = engine
        self.aliases = aliases
        self.texts = TokenTexts(engine.tokenizer)
        self._most_characters = most_characters_of_a_token(engine.tokenizer)

    async def of_chat(self, request: ChatRequest) -> list[EngineCall]:
        """Check a request and render its prompt. Raises ApiError; InputError: it cannot be rendered."""
        model = self._checked(request)
        given = request.messages
        if len(given) > self.engine.max_context:
            raise prompt_too_long(self.engine.max_context, f"prompt has {len(given)} messages", "messages")
        messages = to_messages(given)
        self._check_length(messages, "messages")
        for number, message in enumerate(messages):
            self._check_ids(message, f"messages[{number}].token_ids")
        max_tokens = await self._limit(messages, request.limit(), "messages")
        return _calls(request, messages, max_tokens, model, request.options())

    async def of_completion(self, request: CompletionRequest) -> list[EngineCall]:
        """Check a request and tokenise its prompts."""
        model = self._checked(request)
        calls: list[EngineCall] = []
        for number, given in enumerate(request.prompt):
            prompt = said("text", given) if isinstance(given, str) else said("text", "", given)
            self._check_length([prompt], "prompt")
            self._check_ids(prompt, f"prompt[{number}]")
            max_tokens = await self._limit([prompt], request.max_tokens, "prompt")
            calls += _calls(request, [prompt], max_tokens, model, request.options())
        return calls

    async def of_generation(self, request: GenerateRequest) -> list[EngineCall]:
        """Check a request for token ids."""
        size, parameters = self.engine.vocabulary_size, request.sampling_params
        check_extra(request.model_extra or {}, type(request).model_fields)
        parameters.check(size, "sampling_params.")
        model = self.served_name(request.model)
        prompt = said("text", "", request.token_ids)
        self._check_length([prompt], "token_ids")
        self._check_ids(prompt, "token_ids")
        max_tokens = await self._limit([prompt], parameters.max_tokens, "token_ids")
        options = parameters.options_of(parameters.logprobs, as_drawn=True)
        return _calls(parameters, [prompt], max_tokens, model, options)

    async def answers(self, calls: list[EngineCall]) -> list[ModelResponse]:
        """Return all answers, complete. Raises ApiError: the queue is full, or the engine failed."""
        asking = [asyncio.ensure_future(self.engine.complete(**vars(call))) for call in calls]
        try:
            return await asyncio.gather(*asking)
        except SparringError as error:
            raise _unavailable(error) from error
        finally:
            for one in asking:
                one.cancel()

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
        stream = self.engine.stream(**vars(call))
        try:
            async with aclosing(stream):
                async for part in stream:
                    news.put_nowait((index, part))
        except Exception as error:  # noqa: BLE001 (every error goes to the waiting caller)
            news.put_nowait((index, error))

    def _checked(self, request: AnswerRequest) -> str:
        request.check(self.engine.vocabulary_size)
        return self.served_name(request.model)

    def served_name(self, name: str) -> str:
        """Return the name under which the engine serves a model. Raises ApiError: it does not."""
        served = self.engine.names()
        found = name if name in served else self.aliases.get(name)
        if found not in served:
            raise model_not_found(name, served)
        return found

    async def _limit(self, messages: Messages, asked: int | None, param: str) -> int:
        """Return the maximum number of tokens of an answer. Raises ApiError: it exceeds the context;
        InputError: it cannot be rendered."""
        try:
            limit, prompt_tokens = self.engine.max_context, await self._tokens_of(messages)
        except InputError as error:
            raise InputError(param, error.problem, error.fix) from error
        max_tokens = max(1, min(self.engine.max_tokens, limit - prompt_tokens)) if asked is None else asked
        if prompt_tokens + max_tokens > limit:
            raise context_length_exceeded(limit, prompt_tokens, max_tokens, param)
        return max_tokens

    async def _tokens_of(self, messages: Messages) -> int:
        if _characters(messages) + _token_ids(messages) > LONG_PROMPT:
            return len(await asyncio.to_thread(self.engine.render, messages))
        return len(self.engine.render(messages))

    def _check_ids(self, message: Message, where: str) -> None:
        size = self.engine.vocabulary_size
        largest = max(message.get("token_ids", ()), default=0)
        if largest >= size:
            raise ApiError(400, f"{where}: {largest} is not one of the {size} tokens", param=where)

    def _check_length(self, messages: Messages, param: str) -> None:
        """Refuse a prompt that cannot fit into the context without rendering it, which takes seconds."""
        limit, characters, ids = self.engine.max_context, _characters(messages), _token_ids(messages)
        if ids <= limit and characters <= limit * self._most_characters:
            return
        given = f"{len(messages)} messages have" if param == "messages" else f"{param} has"
        given += f" {characters} characters" + (f" and {ids} token ids" if ids else "")
        raise prompt_too_long(limit, given, param)


def _calls(
    request: DrawParameters, messages: Messages, max_tokens: int, model: str, options: AnswerOptions
) -> list[EngineCall]:
    temperature = 1.0 if request.temperature is None else request.temperature
    stop = tuple(request.stop)
    return [
        EngineCall(messages, max_tokens, seed, model, temperature, stop, options) for seed in request.seeds()
    ]


def _characters(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)


def _token_ids(messages: Messages) -> int:
    return sum(len(message.get("token_ids", ())) for message in messages)


def _unavailable(error: SparringError) -> ApiError:
    return ApiError(503, str(error), headers={"Retry-After": "1"})
