"""What a server needs of an engine, in this process or elsewhere."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

from selfplay.core import InferenceClient, Messages, ModelResponse
from selfplay.inference.answer_options import PLAIN, AnswerOptions


class Answering(InferenceClient):
    """A client that serves models by name, and knows their tokens.

    Attributes:
        max_tokens: maximum number of tokens of an answer if a request does not give one.
        max_context: maximum number of tokens of prompt and answer together.
    """

    max_tokens: int
    max_context: int

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """The number of the model's token ids, which may be more than its tokenizer has."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the served models."""

    @abstractmethod
    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a prompt; it may be called in a thread."""

    @abstractmethod
    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        options: AnswerOptions = PLAIN,
    ) -> ModelResponse:
        """Answer ``messages``; see :meth:`InferenceClient.complete`. The prompt may be a message of role
        ``text`` whose ``token_ids`` are its tokens.
        """

    @abstractmethod
    def stream(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        options: AnswerOptions = PLAIN,
    ) -> AsyncGenerator[ModelResponse]:
        """Answer as :meth:`complete` does, in parts; the last has the text and the reason of its end."""


class AdapterLoader(Protocol):
    """Where adapters are loaded while an engine answers."""

    def names(self) -> list[str]:
        """Return the names of all models that are served."""

    async def load_while_serving(self, name: str, directory: Path) -> int:
        """Serve the adapter in ``directory`` as ``name``, in place of one of that name; return its version.

        Raises:
            InputError: it cannot be read or does not fit the model.
        """

    def unload(self, name: str) -> None:
        """Stop serving ``name``."""
