"""``/inference/v1/generate``: token ids in, token ids and log-probabilities out, as vLLM has it for trainers.

Log-probabilities are always given, as those of the distributions that tokens are drawn from.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from selfplay.core import ModelResponse
from selfplay.inference.server_answers import head, in_json, usage
from selfplay.inference.server_requests import MAX_LIKELIEST, DrawParameters


class GenerateParameters(DrawParameters):
    """vLLM's sampling parameters. There is no text, so what would change only the text is accepted."""

    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class GenerateRequest(BaseModel):
    """Body of ``/inference/v1/generate``."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(min_length=1)
    token_ids: list[Annotated[int, Field(ge=0, strict=True)]] = Field(min_length=1)
    sampling_params: GenerateParameters = GenerateParameters()
    stream: Literal[False] | None = None


class Generation:
    """The answers to one request, which is not streamed.

    Args:
        request: the request.
    """

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
    """Return a token as vLLM names it where there is no text."""
    return {"token": f"token_id:{token}", "logprob": in_json(logprob), "bytes": None}
