"""Models outside the run: behind an API, or in the directory of an adapter."""

from pathlib import Path
from typing import Any

from sparring.core import InferenceClient, InputError, Messages, ModelResponse
from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.concurrency import CallSlots
from sparring.core.current_episode import wait_for_slot


class BoundedClient(InferenceClient):
    """Passes calls on, never more than ``limit`` at once. Waiting takes nothing from an episode's time; a
    call that is tried again keeps its slot."""

    def __init__(self, client: InferenceClient, limit: int) -> None:
        self.client = client
        self._slots = CallSlots(limit)

    async def complete(self, messages: Messages, *asked: Any, **options: Any) -> ModelResponse:
        """Answer as the client does."""
        if not self._slots.take():
            await wait_for_slot(self._slots)
        try:
            return await self.client.complete(messages, *asked, **options)
        finally:
            self._slots.release()


CALLS_AT_ONCE = 16
"""Calls in flight of one process to one model behind an API, which others use too."""


def is_api_model(name: str) -> bool:
    """Whether a name denotes a model behind an API: ``vendor/model`` or ``model@http://host/v1``."""
    return "@http" in name or ("/" in name and not is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a name is the directory of an adapter."""
    return (Path(name) / ADAPTER_CONFIG).is_file()


def api_client(name: str) -> InferenceClient:
    """Return a client of a model at OpenRouter, ``vendor/model``, or at a server, ``model@http://host/v1``,
    with at most ``CALLS_AT_ONCE`` calls in flight. Raises InputError: there is no key for it."""
    refuse_credentials(name, "model")
    from sparring.engine.openai_client import OpenAIClient

    model, at, url = name.partition("@")
    client = OpenAIClient(model=model, base_url=url) if at else OpenAIClient.for_openrouter(model=name)
    return BoundedClient(client, CALLS_AT_ONCE)


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
