"""The server's request bodies and errors, in OpenAI's format."""

from collections.abc import Mapping
from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from selfplay.core import Message, derive_seed
from selfplay.core.messages import said
from selfplay.inference.sampling import GREEDY_BELOW

MAX_CHOICES = 128
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "stop": (None, "", []),
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None, {}),
    "chat_template": (None, ""),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "prompt_logprobs": (None, 0),
    "top_logprobs": (None, 0, 1),
}
"""Parameters of OpenAI and vLLM that this server does not support, with the values that have no effect."""


class TextPart(BaseModel):
    """A text part of a message's content, the only kind: the models read only text."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message. Two things are ours: role ``text``, whose content is the whole prompt, without a template;
    and the token ids of an earlier answer, as this server gave them, which then are in the prompt.
    """

    role: Literal["system", "developer", "user", "assistant", "text"]
    content: str | list[TextPart]
    token_ids: list[NonNegativeInt] | None = None

    def to_message(self) -> Message:
        """Return the message in the engine's format."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        # ``developer`` is OpenAI's newer name for ``system``; chat templates do not have it.
        role = "system" if self.role == "developer" else self.role
        return said(role, content, self.token_ids if role == "assistant" else None)


class StreamOptions(BaseModel):
    """Options for the end of a stream."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """Body of ``/v1/chat/completions``. Other parameters are checked against ``NEUTRAL``, or ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(min_length=1)  # with a length, pydantic also rejects unpaired surrogates
    messages: list[ChatMessage] = Field(min_length=1)
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    return_token_ids: bool | None = None

    def seeds(self) -> list[int | None]:
        """Return one seed for each choice: first the request's own seed, then seeds derived from it."""
        if self.seed is None:
            return [None] * (self.n or 1)
        return [self.seed, *(derive_seed(self.seed, "choice", i) for i in range(1, self.n or 1))]

    def wants_usage(self) -> bool:
        """Return whether the stream ends with token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_supported(self) -> None:
        """Reject parameters that would otherwise be ignored silently.

        Raises:
            ApiError: a parameter that changes answers has a value that this server does not support.
        """
        given = {**(self.model_extra or {}), "top_logprobs": self.top_logprobs}
        for name, neutral in NEUTRAL.items():
            if given.get(name) not in neutral:
                raise ApiError(
                    400,
                    f"{name}: this server cannot do that (got {given[name]!r:.100}). Leave it out",
                    param=name,
                    code="unsupported_value",
                )
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs. Set it to true", param="top_logprobs")
        if self.top_logprobs and (self.temperature is None or self.temperature >= GREEDY_BELOW):
            raise ApiError(
                400,
                "top_logprobs: this server returns only the drawn token, which is certain to be the most "
                "likely one only at temperature 0. Leave it out; logprobs does not need it",
                param="top_logprobs",
                code="unsupported_value",
            )


class LoadAdapterRequest(BaseModel):
    """Body of ``/v1/load_lora_adapter``, as in vLLM. ``load_inplace`` replaces the adapter of this name."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """Body of ``/v1/unload_lora_adapter``, as in vLLM."""

    lora_name: str = Field(min_length=1)


class ApiError(Exception):
    """A rejected request, with its HTTP status and the fields of OpenAI's error format."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    def response(self) -> JSONResponse:
        """Return the HTTP response in OpenAI's format."""
        return JSONResponse(self.body(), self.status, self.headers)

    def body(self) -> dict[str, Any]:
        """Return the body of the response, which is also the last event of a stream that fails."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def model_not_found(name: str, served: list[str]) -> ApiError:
    """Return the error for a model that is not served."""
    return ApiError(
        404,
        f"The model `{name}` does not exist. This server has: {', '.join(served)}",
        param="model",
        code="model_not_found",
    )


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int) -> ApiError:
    """Return the error for a request that exceeds the context, in the words that clients search for."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the messages, {max_tokens} in the "
        "completion). Please reduce the length of the messages or completion.",
        param="messages",
        code="context_length_exceeded",
    )


def prompt_too_long(limit: int, messages: int, characters: int, ids: int) -> ApiError:
    """Return the error for messages that are too long for the context, whatever their tokens are."""
    given = f" and {ids} token ids" if ids else ""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {messages} messages have "
        f"{characters} characters{given}, which is more than fits. Please reduce their length.",
        param="messages",
        code="context_length_exceeded",
    )
