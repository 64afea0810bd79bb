"""Chat: pass the server's chat requests to the engine."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from selfplay.core import Messages, ModelResponse, SelfplayError
from selfplay.inference.answering import Answering
from selfplay.inference.server_schema import (
    ApiError,
    ChatRequest,
    context_length_exceeded,
    model_not_found,
    prompt_too_long,
)

LONG_PROMPT = 10_000
"""Prompts of more characters are tokenised in a thread, because that would keep other requests waiting."""


@dataclass(frozen=True)
class Question:
    """The arguments of the engine's calls, one call for each of ``seeds``."""

    messages: Messages
    model: str
    temperature: float
    max_tokens: int
    seeds: list[int | None]


class Chat:
    """The connection between chat requests and the engine.

    Args:
        engine: the engine that answers.
        aliases: additional names of its models.
    """

    def __init__(self, engine: Answering, aliases: Mapping[str, str]) -> None:
        self.engine = engine
        self.aliases = aliases
        self._most_characters = _most_characters_of_a_token(engine.tokenizer)

    async def question(self, request: ChatRequest) -> Question:
        """Check a request and render its prompt.

        Raises:
            ApiError: the request is invalid.
            InputError: the model cannot render these messages.
        """
        request.check_supported()
        model = self._served_name(request.model)
        messages = [message.to_message() for message in request.messages]
        self._check_length(messages)
        self._check_ids(messages)
        limit, prompt_tokens = self.engine.max_context, await self._tokens_of(messages)
        max_tokens = request.max_completion_tokens or request.max_tokens
        if max_tokens is None:
            max_tokens = max(1, min(self.engine.max_tokens, limit - prompt_tokens))
        if prompt_tokens + max_tokens > limit:
            raise context_length_exceeded(limit, prompt_tokens, max_tokens)
        temperature = 1.0 if request.temperature is None else request.temperature
        return Question(messages, model, temperature, max_tokens, request.seeds())

    async def answers(self, question: Question) -> list[ModelResponse]:
        """Return all answers, complete.

        Raises:
            ApiError: the queue is full, or the engine failed.
        """
        messages, temperature, max_tokens = question.messages, question.temperature, question.max_tokens
        asking = [
            asyncio.ensure_future(
                self.engine.complete(messages, temperature, max_tokens, model=question.model, seed=seed)
            )
            for seed in question.seeds
        ]
        try:
            return await asyncio.gather(*asking)
        except SelfplayError as error:
            raise _unavailable(error) from error
        finally:
            for one in asking:
                one.cancel()

    async def stream(self, question: Question) -> AsyncGenerator[tuple[int, ModelResponse]]:
        """Yield parts of all answers as they are drawn, with the index of the answer.

        See :meth:`Answering.stream`. Closing a stream early cancels its requests.

        Raises:
            ApiError: the queue is full, or the engine failed.
        """
        news: asyncio.Queue[tuple[int, ModelResponse | Exception]] = asyncio.Queue()
        readers = [
            asyncio.create_task(self._read(question, index, news)) for index in range(len(question.seeds))
        ]
        unfinished = len(readers)
        try:
            while unfinished:
                index, part = await news.get()
                if isinstance(part, SelfplayError):
                    raise _unavailable(part) from part
                if isinstance(part, Exception):
                    raise part
                unfinished -= part.finish_reason != ""
                yield index, part
        finally:
            for reader in readers:
                reader.cancel()

    async def _read(
        self, question: Question, index: int, news: "asyncio.Queue[tuple[int, ModelResponse | Exception]]"
    ) -> None:
        seed = question.seeds[index]
        stream = self.engine.stream(
            question.messages, question.temperature, question.max_tokens, model=question.model, seed=seed
        )
        try:
            async with aclosing(stream):
                async for part in stream:
                    news.put_nowait((index, part))
        except Exception as error:  # noqa: BLE001 (every error goes to the waiting caller)
            news.put_nowait((index, error))

    def _served_name(self, name: str) -> str:
        served = self.engine.names()
        found = name if name in served else self.aliases.get(name)
        if found not in served:
            raise model_not_found(name, served)
        return found

    async def _tokens_of(self, messages: Messages) -> int:
        """Return the number of tokens of a prompt. The engine then finds it rendered in the cache."""
        if _characters(messages) + _token_ids(messages) > LONG_PROMPT:
            return len(await asyncio.to_thread(self.engine.render, messages))
        return len(self.engine.render(messages))

    def _check_ids(self, messages: Messages) -> None:
        """Reject token ids that are not in the vocabulary."""
        size = len(self.engine.tokenizer)
        for number, message in enumerate(messages):
            largest = max(message.get("token_ids", ()), default=0)
            if largest >= size:
                where = f"messages[{number}].token_ids"
                raise ApiError(400, f"{where}: {largest} is not one of the {size} tokens", param=where)

    def _check_length(self, messages: Messages) -> None:
        """Reject messages that cannot fit into the context without rendering them, which takes seconds."""
        limit, characters, ids = self.engine.max_context, _characters(messages), _token_ids(messages)
        if max(len(messages), ids) > limit or characters > limit * self._most_characters:
            raise prompt_too_long(limit, len(messages), characters, ids)


def _characters(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)


def _token_ids(messages: Messages) -> int:
    return sum(len(message.get("token_ids", ())) for message in messages)


def _unavailable(error: SelfplayError) -> ApiError:
    return ApiError(503, str(error), headers={"Retry-After": "1"})


def _most_characters_of_a_token(tokenizer: Any) -> int:
    """Return the maximum number of characters in a single token.

    In vocabularies of bytes, each letter stands for a byte, and a character has one or more bytes. If a row
    of unknown characters is one token, there is no maximum, and a very large number is returned.
    """
    unknown = "\U0010fffd" * 8
    if len(tokenizer(unknown, add_special_tokens=False).input_ids) < len(unknown):
        return 2**40
    return max(map(len, tokenizer.get_vocab()))
