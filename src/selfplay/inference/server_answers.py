"""The server's answers: the engine's responses as chat completions, whole or in chunks."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from selfplay.core import ModelResponse
from selfplay.inference.server_schema import ChatRequest
from selfplay.inference.text_stream import REPLACEMENT, TextStream


@dataclass
class _Choice:
    """A streamed answer: its text so far, the tokens that are not sent yet, and the number of its tokens."""

    prompt: list[int]
    text: TextStream
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    drawn: int = 0


class Completion:
    """The answers to one request, with the engine's token ids and log-probabilities, stop token included.

    Args:
        request: the request.
        tokenizer: the model's tokenizer.
    """

    def __init__(self, request: ChatRequest, tokenizer: Any) -> None:
        self.request = request
        self.tokenizer = tokenizer
        self.head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }
        self._choices: dict[int, _Choice] = {}

    def whole(self, answers: list[ModelResponse]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text},
                "finish_reason": answer.finish_reason,
                **self._tokens(_ids(answer), _logprobs(answer)),
            }
            for index, answer in enumerate(answers)
        ]
        prompt = answers[0].prompt_token_ids or []
        usage = _usage(prompt, sum(len(_ids(answer)) for answer in answers))
        body = {**self.head, "object": "chat.completion", "choices": choices, "usage": usage}
        return body | self._prompt_ids(prompt)

    def chunks(self, index: int, part: ModelResponse) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the next part of a streamed answer: its role, then its text, then its reason.

        A chunk has one token where possible; tokens that form a character together are in the same chunk.
        """
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(part.prompt_token_ids or [], TextStream(self.tokenizer))
            role = {"role": "assistant", "content": ""}
            yield self._chunk(index, role, None, {}) | self._prompt_ids(choice.prompt)
        ids, logprobs = _ids(part), _logprobs(part)
        choice.drawn += len(ids)
        # The last token goes out with the end of the text. A stop token has no text.
        last = len(ids) - 1 if part.finish_reason else len(ids)
        for token, logprob in zip(ids[:last], logprobs[:last], strict=True):
            choice.ids.append(token)
            choice.logprobs.append(logprob)
            text = choice.text.add(token)
            if text:
                yield self._piece(index, choice, text, None)
        if part.finish_reason:
            text = choice.text.add(ids[-1]) if part.finish_reason != "stop" else ""
            choice.ids.append(ids[-1])
            choice.logprobs.append(logprobs[-1])
            yield self._piece(index, choice, text + choice.text.finish(), part.finish_reason)

    def usage_chunk(self) -> Iterator[dict[str, Any]]:
        """Yield the last chunk of a stream if the request asks for token counts."""
        if self.request.wants_usage():
            choices = self._choices.values()
            usage = _usage(self._choices[0].prompt, sum(choice.drawn for choice in choices))
            yield {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def _piece(self, index: int, choice: _Choice, text: str, reason: str | None) -> dict[str, Any]:
        tokens = self._tokens(choice.ids, choice.logprobs)
        choice.ids, choice.logprobs = [], []
        return self._chunk(index, {"content": text}, reason, tokens)

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None, tokens: dict[str, Any]
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, **tokens}
        chunk = {**self.head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self.request.wants_usage() else chunk

    def _tokens(self, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
        """Return the fields that the request asks for about these tokens."""
        fields: dict[str, Any] = {"logprobs": None}
        if self.request.logprobs:
            content = [self._logprob(*pair) for pair in zip(ids, logprobs, strict=True)]
            fields["logprobs"] = {"content": content, "refusal": None}
        if self.request.return_token_ids:
            fields["token_ids"] = ids
        return fields

    def _logprob(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token_id])
        # A token that is only a part of a character has no text of its own.
        token = {"token": text, "logprob": logprob, "bytes": None}
        if REPLACEMENT not in text:
            token["bytes"] = list(text.encode())
        # ``top_logprobs`` is accepted only at temperature 0, where the drawn token is the most likely one.
        return {**token, "top_logprobs": [token] if self.request.top_logprobs else []}

    def _prompt_ids(self, prompt: list[int]) -> dict[str, Any]:
        """Return vLLM's extra field if the request asks for it."""
        return {"prompt_token_ids": prompt} if self.request.return_token_ids else {}


def _usage(prompt: list[int], drawn: int) -> dict[str, int]:
    total = len(prompt) + drawn
    return {"prompt_tokens": len(prompt), "completion_tokens": drawn, "total_tokens": total}


def _ids(answer: ModelResponse) -> list[int]:
    return answer.completion_token_ids or []


def _logprobs(answer: ModelResponse) -> list[float]:
    return answer.completion_logprobs or []
