"""``/inference/v1/generate``, vLLM's route for clients that render prompts themselves, such as verifiers':
token ids in, token ids and log-probabilities out.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from selfplay.core import ModelResponse
from selfplay.inference.server_answers import head, in_json, usage
from selfplay.inference.server_parameters import check_extra
from selfplay.inference.server_requests import AnswerRequest, CompletionRequest

TokenId = Annotated[int, Field(ge=0)]


class SamplingParams(AnswerRequest):
    """How an answer is drawn: the fields of other requests, and some of vLLM's that only this route has."""

    model: str = Field(default="default", exclude=True)  # the request has it
    max_tokens: int | None = Field(default=None, ge=1)
    stop_token_ids: list[TokenId] = Field(default=[], max_length=1024, exclude=True)
    """Tokens after which an answer is cut."""
    logprobs: int | None = Field(default=None, ge=0, le=1, exclude=True)
    """Those of the drawn tokens are always given."""
    skip_special_tokens: bool | None = Field(default=None, exclude=True)
    """It has no effect, because no text is given."""


class GenerateRequest(BaseModel):
    """Body of ``/inference/v1/generate``."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: SamplingParams
    stream: Literal[False] | None = None

    def completion(self) -> CompletionRequest:
        """Return the same request as one for ``/v1/completions``.

        Raises:
            ApiError: it has a parameter that the server does not know.
        """
        check_extra(self.model_extra or {}, type(self).model_fields)
        given = self.sampling_params.model_dump(exclude_none=True)
        ids = {"prompt": self.token_ids, "return_token_ids": True}
        return CompletionRequest(**(given | ids | {"model": self.model}))

    def answer(self, answers: Sequence[ModelResponse]) -> dict[str, Any]:
        """Return the body of the answer."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        drawn = sum(len(choice["token_ids"]) for choice in choices)
        begin = head("gen", self.model)
        return {
            **begin,
            "request_id": begin["id"],
            "choices": choices,
            "usage": usage(len(self.token_ids), drawn),
        }

    def _choice(self, index: int, answer: ModelResponse) -> dict[str, Any]:
        ids, logprobs = answer.completion_token_ids or [], answer.completion_logprobs or []
        ends = set(self.sampling_params.stop_token_ids)
        last = next((place for place, token in enumerate(ids) if token in ends), None)
        length = len(ids) if last is None else last + 1
        content = [
            {"token": f"token_id:{token}", "logprob": in_json(logprob)}
            for token, logprob in zip(ids[:length], logprobs[:length], strict=True)
        ]
        reason = answer.finish_reason if last is None else "stop"
        return {
            "index": index,
            "token_ids": ids[:length],
            "logprobs": {"content": content},
            "finish_reason": reason,
        }
