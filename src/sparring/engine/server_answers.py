"""The server's answers: the engine's responses as chat completions, text completions or token ids."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sparring.core import ModelResponse
from sparring.core.chat_tokens import decoded
from sparring.engine.answer_stream import (
    REPLACEMENT,
    AnswerStream,
    Piece,
    Token,
    TokenTexts,
    prompt_tokens,
)
from sparring.engine.server_requests import ChatRequest, CompletionRequest, GenerateRequest

LOWEST = -9999.0
"""What an impossible token has for a log-probability, because JSON has no infinity; as OpenAI and vLLM."""


Asked = TypeVar("Asked", bound=ChatRequest | CompletionRequest)


class Completion(ABC, Generic[Asked]):
    """The answers to one request in a format of OpenAI's, with the engine's ids and log-probabilities.
    ``kind`` begins the id; ``form`` and ``chunk`` name the format, whole and in a stream."""

    def __init__(self, request: Asked, texts: TokenTexts, kind: str, form: str, chunk: str) -> None:
        self.request = request
        self.texts = texts
        self._head = head(kind, request.model)
        self._form, self._chunk_form = form, chunk
        self._choices: dict[int, AnswerStream] = {}
        self._prompts: dict[int, int] = {}

    def whole(self, answers: Sequence[ModelResponse]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        prompts = sum(len(answer.prompt_token_ids or []) for answer in answers[:: self.request.n or 1])
        drawn = sum(len(answer.completion_token_ids or []) for answer in answers)
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        counts = usage(prompts, drawn)
        return {**self._head, "object": self._form, "choices": choices, "usage": counts}

    def chunks(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the next part of a streamed answer: how it begins, then its text and reason."""
        if index not in self._choices:
            self._choices[index] = self._stream(index, part)
            self._prompts[index // (self.request.n or 1)] = len(part.prompt_token_ids or [])
            yield from self._begin(index, part)
        for piece in self._choices[index].add(part):
            yield self._chunk(self._choice(index, piece))

    def usage_chunk(self) -> Iterator[dict[str, Any]]:
        """Yield the last chunk of a stream if the request asks for token counts."""
        if self.request.wants_usage():
            yield {**self._head, "object": self._chunk_form, "choices": [], "usage": self._usage_so_far()}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self._chunk_form, "choices": [choice]}
        if not self.request.wants_usage():
            return chunk
        return {**chunk, "usage": self._usage_so_far() if self.request.wants_usage_so_far() else None}

    def _usage_so_far(self) -> dict[str, int]:
        drawn = sum(choice.drawn for choice in self._choices.values())
        return usage(sum(self._prompts.values()), drawn)

    def _ids(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": [token.id for token in piece.tokens]} if self.request.return_token_ids else {}

    def _prompt_ids(self, answer: ModelResponse) -> dict[str, Any]:
        return {"prompt_token_ids": answer.prompt_token_ids or []} if self.request.return_token_ids else {}

    @abstractmethod
    def _stream(self, index: int, answer: ModelResponse) -> AnswerStream: ...

    @abstractmethod
    def _begin(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def _choice(self, index: int, piece: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_choice(self, index: int, answer: ModelResponse) -> dict[str, Any]: ...


class ChatCompletion(Completion[ChatRequest]):
    """The answers to one chat request."""

    def __init__(self, request: ChatRequest, texts: TokenTexts) -> None:
        super().__init__(request, texts, "chatcmpl", "chat.completion", "chat.completion.chunk")

    def whole(self, answers: Sequence[ModelResponse]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        return super().whole(answers) | self._prompt_ids(answers[0])

    def _stream(self, index: int, answer: ModelResponse) -> AnswerStream:
        parts = self.texts.reader.stream(answer.prompt_token_ids or [])
        return AnswerStream(self.texts, self.request.stop, parts=parts)

    def _begin(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        yield self._chunk({"index": index, "delta": delta, "finish_reason": None}) | self._prompt_ids(part)

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        delta = {"reasoning_content": piece.reasoning} if piece.reasoning else {}
        if piece.text or not delta:
            delta["content"] = piece.text
        return {"index": index, "delta": delta, "finish_reason": piece.reason, **self._tokens(piece)}

    def _whole_choice(self, index: int, answer: ModelResponse) -> dict[str, Any]:
        wanted = bool(self.request.logprobs or self.request.return_token_ids)
        piece = self._stream(index, answer).whole(answer, with_tokens=wanted)
        message = {"role": "assistant", "content": piece.text}
        if answer.reasoning is not None:
            message["reasoning_content"] = piece.reasoning
        return {"index": index, "message": message, "finish_reason": piece.reason, **self._tokens(piece)}

    def _tokens(self, piece: Piece) -> dict[str, Any]:
        described = None
        if self.request.logprobs:
            described = {"content": [self._described(token) for token in piece.tokens], "refusal": None}
        return {"logprobs": described, **self._ids(piece)}

    def _described(self, token: Token) -> dict[str, Any]:
        likeliest = [self._entry(*one, token.first) for one in token.likeliest]
        return {**self._entry(token.id, token.logprob, token.first), "top_logprobs": likeliest}

    def _entry(self, token: int, logprob: float | None, first: bool) -> dict[str, Any]:
        return {
            "token": self.texts.text(token, first=first),
            "logprob": in_json(logprob),
            "bytes": list(self.texts.bytes(token, first=first)),
        }


class TextCompletion(Completion[CompletionRequest]):
    """The answers to one request, ``n`` for each prompt in the order of the prompts."""

    def __init__(self, request: CompletionRequest, texts: TokenTexts) -> None:
        super().__init__(request, texts, "cmpl", "text_completion", "text_completion")

    def chunks(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the next part of a streamed answer, reasoning included."""
        return super().chunks(index, self._all_of(part))

    def _all_of(self, answer: ModelResponse) -> ModelResponse:
        """Return an answer whose text is all that was written."""
        if answer.written is None:
            return answer
        return replace(answer, text=self.texts.reader.without_control(answer.written))

    def _stream(self, index: int, answer: ModelResponse) -> AnswerStream:
        before = len(self._prompt(index, answer).text)
        return AnswerStream(self.texts, self.request.stop, offset=before, continues=True)

    def _begin(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        if self.request.echo:
            ids = self._ids(Piece("", [], None)) | self._prompt_ids(part)
            yield self._chunk(self._choice(index, self._prompt(index, part)) | ids)

    def _whole_choice(self, index: int, answer: ModelResponse) -> dict[str, Any]:
        wanted = bool(self.request.logprobs is not None or self.request.return_token_ids)
        prompt, piece = (
            self._prompt(index, answer),
            self._stream(index, answer).whole(self._all_of(answer), with_tokens=wanted),
        )
        together = Piece(prompt.text + piece.text, prompt.tokens + piece.tokens, piece.reason)
        return self._choice(index, together) | self._ids(piece) | self._prompt_ids(answer)

    def _prompt(self, index: int, answer: ModelResponse) -> Piece:
        if not self.request.echo:
            return Piece("", [], None)
        ids = answer.prompt_token_ids or []
        given: str | list[int] = self.request.prompt[index // (self.request.n or 1)]
        text = given if isinstance(given, str) else decoded(self.texts.tokenizer, ids)
        scored = self.request.logprobs is not None and answer.more is not None
        return Piece(
            text, prompt_tokens(self.texts, ids, answer.more) if scored and answer.more else [], None
        )

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = self._logprobs(piece.tokens) if self.request.logprobs is not None else None
        choice = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.reason}
        return choice | self._ids(piece)

    def _logprobs(self, tokens: list[Token]) -> dict[str, list[Any]]:
        """Return OpenAI's older form: parallel lists, the likeliest tokens of each token as an object."""
        return {
            "tokens": [self._name(token.id, token.first) for token in tokens],
            "token_logprobs": [in_json(token.logprob) for token in tokens],
            "top_logprobs": [self._likeliest(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _likeliest(self, token: Token) -> dict[str, float | None] | None:
        """Return the likeliest tokens by name, and the token itself; of equal names, the likelier one."""
        if token.logprob is None:
            return None
        named: dict[str, float | None] = {}
        for one, logprob in [*token.likeliest, (token.id, token.logprob)]:
            named.setdefault(self._name(one, token.first), in_json(logprob))
        return named

    def _name(self, token: int, first: bool) -> str:
        """Return a token's text, or its bytes in OpenAI's notation if it is a part of a character."""
        text = self.texts.text(token, first=first)
        if REPLACEMENT not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.texts.bytes(token, first=first))


def head(kind: str, model: str) -> dict[str, Any]:
    """Return the fields with which every answer begins."""
    return {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def usage(prompt: int, drawn: int) -> dict[str, int]:
    """Return counts of tokens in OpenAI's format."""
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def in_json(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can have it."""
    return None if logprob is None else max(logprob, LOWEST)


class Generation:
    """The answers to one request for token ids, which is not streamed."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request

    def whole(self, answers: Sequence[ModelResponse]) -> dict[str, Any]:
        """Return the body of the response."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        drawn = sum(len(choice["token_ids"]) for choice in choices)
        begin = head("gen", self.request.model)
        counts = usage(len(self.request.token_ids), drawn)
        return {**begin, "request_id": begin["id"], "choices": choices, "usage": counts}

    def _choice(self, index: int, answer: ModelResponse) -> dict[str, Any]:
        ids = answer.completion_token_ids or []
        tops = (answer.more.likeliest if answer.more else []) or [[] for _ in ids]
        content = [
            {**_entry(token, logprob), "top_logprobs": [_entry(*one) for one in top]}
            for token, logprob, top in zip(ids, answer.completion_logprobs or [], tops, strict=True)
        ]
        reason = answer.finish_reason
        return {"index": index, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "logprob": in_json(logprob), "bytes": None}
