"""The server's answers: the engine's responses as chat completions, whole or in chunks."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from selfplay.core import ModelResponse
from selfplay.inference.answer_stream import AnswerStream, Piece, Token
from selfplay.inference.server_requests import ChatRequest
from selfplay.inference.token_texts import TokenTexts

LOWEST = -9999.0
"""What an impossible token has for a log-probability, because JSON has no infinity; as OpenAI and vLLM."""


class ChatCompletion:
    """The answers to one chat request, with the engine's ids and log-probabilities, stop token included.

    Args:
        request: the request.
        texts: the texts of tokens.
    """

    def __init__(self, request: ChatRequest, texts: TokenTexts) -> None:
        self.request = request
        self.texts = texts
        self.head = head("chatcmpl", request.model)
        self._choices: dict[int, AnswerStream] = {}
        self._prompt: list[int] = []

    def whole(self, answers: Sequence[ModelResponse]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        prompt = answers[0].prompt_token_ids or []
        drawn = sum(len(answer.completion_token_ids or []) for answer in answers)
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        body = {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(len(prompt), drawn),
        }
        return body | self._prompt_ids(prompt)

    def chunks(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the next part of a streamed answer: its role, its text, then its reason."""
        if index not in self._choices:
            self._choices[index] = self._stream()
            self._prompt = part.prompt_token_ids or []
            role = {"role": "assistant", "content": ""}
            yield self._chunk(index, role, None, {}) | self._prompt_ids(self._prompt)
        for piece in self._choices[index].add(part):
            yield self._chunk(index, {"content": piece.text}, piece.reason, self._tokens(piece))

    def usage_chunk(self) -> Iterator[dict[str, Any]]:
        """Yield the last chunk of a stream if the request asks for token counts."""
        if self.request.wants_usage():
            chunk = {**self.head, "object": "chat.completion.chunk", "choices": []}
            yield {**chunk, "usage": self._usage_so_far()}

    def _usage_so_far(self) -> dict[str, int]:
        return usage(len(self._prompt), sum(choice.drawn for choice in self._choices.values()))

    def _stream(self) -> AnswerStream:
        return AnswerStream(self.texts, self.request.stop)

    def _whole_choice(self, index: int, answer: ModelResponse) -> dict[str, Any]:
        wanted = bool(self.request.logprobs or self.request.return_token_ids)
        piece = self._stream().whole(answer, with_tokens=wanted)
        message = {"role": "assistant", "content": piece.text}
        return {"index": index, "message": message, "finish_reason": piece.reason, **self._tokens(piece)}

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None, tokens: dict[str, Any]
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, **tokens}
        chunk = {**self.head, "object": "chat.completion.chunk", "choices": [choice]}
        if not self.request.wants_usage():
            return chunk
        return {**chunk, "usage": self._usage_so_far() if self.request.wants_usage_so_far() else None}

    def _tokens(self, piece: Piece) -> dict[str, Any]:
        """Return the fields that the request asks for about the tokens of a piece."""
        fields: dict[str, Any] = {"logprobs": None}
        if self.request.logprobs:
            content = [self._described(token) for token in piece.tokens]
            fields["logprobs"] = {"content": content, "refusal": None}
        if self.request.return_token_ids:
            fields["token_ids"] = [token.id for token in piece.tokens]
        return fields

    def _described(self, token: Token) -> dict[str, Any]:
        likeliest = [self._entry(*one, token.first) for one in token.likeliest]
        return {**self._entry(token.id, token.logprob, token.first), "top_logprobs": likeliest}

    def _entry(self, token: int, logprob: float | None, first: bool) -> dict[str, Any]:
        return {
            "token": self.texts.text(token, first=first),
            "logprob": in_json(logprob),
            "bytes": list(self.texts.bytes(token, first=first)),
        }

    def _prompt_ids(self, prompt: list[int]) -> dict[str, Any]:
        """Return vLLM's extra field if the request asks for it."""
        return {"prompt_token_ids": prompt} if self.request.return_token_ids else {}


def head(kind: str, model: str) -> dict[str, Any]:
    """Return the fields with which every answer begins."""
    return {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def usage(prompt: int, drawn: int) -> dict[str, int]:
    """Return counts of tokens in OpenAI's format."""
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def in_json(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can have it."""
    return None if logprob is None else max(logprob, LOWEST)
