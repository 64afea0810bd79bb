"""Models outside the run: behind an API, or in the directory of an adapter."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sparring.core import InferenceClient, InputError, Messages, ModelResponse
from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.concurrency import CallSlots
from sparring.core.current_episode import wait_for_slot


@asynccontextmanager
async def slot_of(slots: CallSlots) -> AsyncIterator[None]:
    """Hold one of the slots. Waiting for it takes nothing from an episode's time."""
    if not slots.take():
        await wait_for_slot(slots)
    try:
        yield
    finally:
        slots.release()


class BoundedClient(InferenceClient):
    """Passes calls on, never more than ``limit`` at once. A call that is tried again keeps its slot."""

    def __init__(self, client: InferenceClient, limit: int) -> None:
        self.client = client
        self._slots = CallSlots(limit)

    async def complete(self, messages: Messages, *asked: Any, **options: Any) -> ModelResponse:
        """Answer as the client does."""
        async with slot_of(self._slots):
            return await self.client.complete(messages, *asked, **options)


CALLS_AT_ONCE = 16
"""Calls in flight of one process to one model behind an API, which others use too."""


def is_api_model(name: str) -> bool:
    """Whether a name denotes a model behind an API: ``vendor/model`` or ``model@http://host/v1``."""
    return "@http" in name or ("/" in name and not is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a name is the directory of an adapter."""
    return (Path(name) / ADAPTER_CONFIG).is_file()


def api_client(name: str) -> InferenceClient:
    """Return a client of a model behind an API with at most ``CALLS_AT_ONCE`` calls in flight; see
    :func:`openai_client`."""
    return BoundedClient(openai_client(name), CALLS_AT_ONCE)


def openai_client(name: str) -> InferenceClient:
    """Return a client of a model at OpenRouter, ``vendor/model``, or at a server, ``model@http://host/v1``.

    Raises InputError: there is no key for it."""
    refuse_credentials(name, "model")
    from sparring.engine.openai_client import OpenAIClient

    model, at, url = name.partition("@")
    return OpenAIClient(model=model, base_url=url) if at else OpenAIClient.for_openrouter(model=name)


def with_address(name: str) -> str:
    """Return a name of a model behind an API with its address, also if it is at OpenRouter."""
    from sparring.engine.openai_client import OPENROUTER_URL

    return name if "@" in name else f"{name}@{OPENROUTER_URL}"


def as_chat(messages: Messages) -> Messages:
    """Return a prompt as an API takes it: one without chat markup is a user's message."""
    return [{**one, "role": "user"} if one["role"] == "text" else one for one in messages]


def refuse_credentials(name: str, field: str) -> None:
    """Raise an InputError if the address in a model's name may contain a password or a key: names are
    journaled, reported and sent to Weights & Biases."""
    if not is_api_model(name):
        return
    model, _, address = name.partition("@")
    if "@" in address:
        part = "a user or a password"
    elif "?" in address or "#" in address:
        part = "a query or a fragment"
    else:
        return
    raise InputError(
        field,
        f"the address of {model!r} contains {part}, and names are written to many places",
        "Leave it out; the key is read from SPARRING_API_KEY",
    )


class MembersClient(InferenceClient):
    """Passes each call to the client of its model: one of ``apis`` by the member's name, or ``local``."""

    def __init__(self, local: InferenceClient | None, apis: Mapping[str, InferenceClient]) -> None:
        self.local = local
        self.apis = apis

    def forget_contexts(self) -> None:
        """Let answers of this process's engine not depend on earlier requests."""
        from sparring.engine.engine import EmbeddedEngine

        if isinstance(self.local, EmbeddedEngine):
            self.local.forget_contexts()

    async def complete(
        self, messages: Messages, *asked: Any, model: str | None = None, **options: Any
    ) -> ModelResponse:
        """Answer as the model's client does; an API knows its own model by its own name."""
        client = self._client_of(model)
        if client is self.local:
            return await client.complete(messages, *asked, model=model, **options)
        return await client.complete(as_chat(messages), *asked, **options)

    async def give(
        self, messages: Messages, text: str, temperature: float = 1.0, *, model: str | None = None
    ) -> ModelResponse:
        """Answer with ``text`` as the model's client does; an API cannot."""
        return await self._client_of(model).give(messages, text, temperature, model=model)

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Score as the model's client does; an API cannot."""
        return await self._client_of(model).score(messages, completions, model=model)

    def _client_of(self, model: str | None) -> InferenceClient:
        client = self.apis.get(model or "", self.local)
        assert client is not None, "every model is served here or behind an API"
        return client
