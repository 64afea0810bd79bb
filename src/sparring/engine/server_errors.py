"""ApiError: a rejected request. Jobs without a server raise it too, so nothing of HTTP is imported here."""

from collections.abc import Mapping
from typing import Any

from sparring.core.text import one_line

LONGEST_MESSAGE, LONGEST_PARAM = 4000, 200
"""Characters of an error that a client gets back; they may quote a name of the client's or of a file."""


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

    def body(self) -> dict[str, Any]:
        """Return the body of the response, which is also the last event of a stream that fails."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        param = None if self.param is None else one_line(self.param)[:LONGEST_PARAM]
        message = one_line(self.message)[:LONGEST_MESSAGE]
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def model_not_found(name: str, served: list[str]) -> ApiError:
    """Return the error for a model that is not served."""
    return ApiError(
        404,
        f"The model `{name}` does not exist. This server has: {', '.join(served)}",
        param="model",
        code="model_not_found",
    )


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int, param: str) -> ApiError:
    """Return the error for a request that exceeds the context, in the words that clients search for."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {param}, {max_tokens} in the "
        f"completion). Please reduce the length of the {param} or completion.",
        param=param,
        code="context_length_exceeded",
    )


def prompt_too_long(limit: int, given: str, param: str) -> ApiError:
    """Return the error for a prompt that is too long for the context, whatever its tokens are."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {given}, which is more than "
        "fits. Please reduce the length.",
        param=param,
        code="context_length_exceeded",
    )
