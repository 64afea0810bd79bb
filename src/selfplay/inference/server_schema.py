"""What the server takes, and how it says no: request bodies and errors in OpenAI's shapes."""

from collections.abc import Mapping
from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from selfplay.core import Message, derive_seed
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
"""Parameters that change an answer, which this server does not do, with the values that change nothing."""


class TextPart(BaseModel):
    """A piece of a message's content. There are no others: the models read text."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message. Role ``text`` is ours: the content of a single one is the prompt, without a template."""

    role: Literal["system", "developer", "user", "assistant", "text"]
    content: str | list[TextPart]

    def to_message(self) -> Message:
        """The message as the engine takes it."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        # ``developer`` is OpenAI's later word for ``system``; chat templates do not know it.
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """Body of ``/v1/chat/completions``. What is not named here is looked up in ``NEUTRAL`` or passed over."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(min_length=1)  # with a length, pydantic refuses halves of surrogate pairs too
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
        """One seed for each choice: the request's own first, then others that follow from it."""
        if self.seed is None:
            return [None] * (self.n or 1)
        return [self.seed, *(derive_seed(self.seed, "choice", i) for i in range(1, self.n or 1))]

    def wants_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_supported(self) -> None:
        """Refuse what would be ignored otherwise.

        Raises:
            ApiError: a parameter that changes answers has a value that this server cannot follow.
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
                "top_logprobs: this server knows the drawn token only, which is sure to be the likeliest at "
                "temperature 0 alone. Leave it out; logprobs needs it not",
                param="top_logprobs",
                code="unsupported_value",
            )


class LoadAdapterRequest(BaseModel):
    """Body of ``/v1/load_lora_adapter``, as vLLM's. ``load_inplace``: replace the one of this name."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """Body of ``/v1/unload_lora_adapter``, as vLLM's."""

    lora_name: str = Field(min_length=1)


class ApiError(Exception):
    """A request that is refused; becomes ``error_response`` of the same arguments."""

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
        """The answer that an OpenAI client understands."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, self.status, self.headers)


def model_not_found(name: str, served: list[str]) -> ApiError:
    """The refusal of a model that is not served."""
    return ApiError(
        404,
        f"The model `{name}` does not exist. This server has: {', '.join(served)}",
        param="model",
        code="model_not_found",
    )


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int) -> ApiError:
    """The refusal of a request past the context limit, in the words that clients look for."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the messages, {max_tokens} in the "
        "completion). Please reduce the length of the messages or completion.",
        param="messages",
        code="context_length_exceeded",
    )
