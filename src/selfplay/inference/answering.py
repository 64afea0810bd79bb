"""Answering: what the server asks of an engine, in this process or elsewhere."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from selfplay.core import Messages, ModelResponse


class Answering(Protocol):
    """Serves models by name; :class:`selfplay.inference.engine.EmbeddedEngine` describes each member."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of an answer if a request does not give one."""

    @property
    def max_context(self) -> int:
        """Maximum number of tokens of prompt and answer together."""

    def names(self) -> list[str]:
        """Return the names of the served models."""

    async def get_policy_version(self) -> int:
        """Return the newest version that is served."""

    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a prompt; it may be called in a thread."""

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
    ) -> ModelResponse:
        """Answer ``messages``."""

    def stream(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[ModelResponse]:
        """Answer as :meth:`complete` does, in parts; the last has the text and the reason of its end."""
