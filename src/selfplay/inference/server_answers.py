"""What the server gives: answers of the engine as chat completions, whole or in chunks."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from selfplay.core import ModelResponse
from selfplay.inference.server_schema import ChatRequest

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Completion:
    """The answers to one request. Token ids and log-probabilities are the engine's, the stop token included.

    Args:
        request: what was asked.
        responses: one for each choice, with tokens.
        tokenizer: the model's.
    """

    def __init__(self, request: ChatRequest, responses: list[ModelResponse], tokenizer: Any) -> None:
        self.request = request
        self.responses = responses
        self.tokenizer = tokenizer
        self.head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": response.text},
                "finish_reason": response.finish_reason,
                **self._tokens(response, 0, len(_ids(response))),
            }
            for index, response in enumerate(self.responses)
        ]
        body = {**self.head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        return body | self._prompt_ids()

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The objects of a stream, choice after choice: its role, its text, and its end."""
        for index, response in enumerate(self.responses):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, {}) | self._prompt_ids()
            for text, first, end in pieces(self.tokenizer, response):
                is_last = end == len(_ids(response))
                reason = response.finish_reason if is_last else None
                yield self._chunk(index, {"content": text}, reason, self._tokens(response, first, end))
        if self.request.wants_usage():
            yield {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None, tokens: dict[str, Any]
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, **tokens}
        chunk = {**self.head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self.request.wants_usage() else chunk

    def _tokens(self, response: ModelResponse, first: int, end: int) -> dict[str, Any]:
        """What was asked for about tokens ``first`` to ``end``."""
        ids = _ids(response)[first:end]
        fields: dict[str, Any] = {"logprobs": None}
        if self.request.logprobs:
            logprobs = (response.completion_logprobs or [])[first:end]
            content = [self._logprob(*pair) for pair in zip(ids, logprobs, strict=True)]
            fields["logprobs"] = {"content": content, "refusal": None}
        if self.request.return_token_ids:
            fields["token_ids"] = ids
        return fields

    def _logprob(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token_id])
        # A token that is a part of a character has no text of its own.
        token = {"token": text, "logprob": logprob, "bytes": None}
        if REPLACEMENT not in text:
            token["bytes"] = list(text.encode())
        # ``top_logprobs`` is taken at temperature 0 only, where the drawn token is the likeliest.
        return {**token, "top_logprobs": [token] if self.request.top_logprobs else []}

    def _prompt_ids(self) -> dict[str, Any]:
        """vLLM's extra field, where it was asked for."""
        wanted = self.request.return_token_ids
        return {"prompt_token_ids": self.responses[0].prompt_token_ids} if wanted else {}

    def _usage(self) -> dict[str, int]:
        prompt = len(self.responses[0].prompt_token_ids or [])
        answers = sum(len(_ids(response)) for response in self.responses)
        return {"prompt_tokens": prompt, "completion_tokens": answers, "total_tokens": prompt + answers}


def pieces(tokenizer: Any, response: ModelResponse) -> Iterator[tuple[str, int, int]]:
    """Split an answer into (text, first, end): text, and the tokens from ``first`` to ``end`` that bring it.

    Joined, the texts are the answer's. A piece is one token where the text allows it: tokens that make a
    character together stay together. The last piece has the last token.
    """
    ids = _ids(response)
    told, first = 0, 0
    for end in range(1, len(ids)):
        text = tokenizer.decode(ids[:end], skip_special_tokens=True)
        if len(text) > told and response.text.startswith(text):
            yield text[told:], first, end
            told, first = len(text), end
    yield response.text[told:], first, len(ids)


def _ids(response: ModelResponse) -> list[int]:
    return response.completion_token_ids or []
