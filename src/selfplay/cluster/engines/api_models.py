"""Models outside the run: behind an API, or in the directory of an adapter."""

from pathlib import Path

from selfplay.core import InferenceClient, InputError
from selfplay.core.adapters import ADAPTER_CONFIG
from selfplay.training.evaluation_opponents import OPPONENTS

CALLS_AT_ONCE = 16
"""Calls in flight of one process to one model behind an API, which others use too."""


def is_api_model(name: str) -> bool:
    """Whether a name denotes a model behind an API: ``vendor/model`` or ``model@http://host/v1``."""
    return "@http" in name or ("/" in name and not is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a name is the directory of an adapter."""
    return (Path(name) / ADAPTER_CONFIG).is_file()


def api_client(name: str) -> InferenceClient:
    """Return a client for a model behind an API, with at most ``CALLS_AT_ONCE`` calls in flight.

    ``google/gemini-2.0-flash-lite-001`` is requested from OpenRouter, ``model@http://127.0.0.1:8000/v1`` from
    that server.

    Raises:
        InputError: the environment has no key for it.
    """
    refuse_credentials(name, "model")
    from selfplay.inference.bounded_client import BoundedClient
    from selfplay.inference.openai_client import OpenAIClient

    model, at, url = name.partition("@")
    client = OpenAIClient(model=model, base_url=url) if at else OpenAIClient.for_openrouter(model=name)
    return BoundedClient(client, CALLS_AT_ONCE)


def refuse_credentials(name: str, field: str) -> None:
    """Raise an InputError if the address in the name of a model may contain a password or a key.

    In ``model@http://user:password@host/v1?api_key=KEY`` the name is journaled, rated, reported and sent to
    Weights & Biases.
    """
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
        "Leave it out; the key is read from SELFPLAY_API_KEY",
    )


def check_opponent_name(name: str, field: str) -> None:
    """Raise an InputError unless an opponent of this name can play here.

    An opponent is scripted (``random``, ``optimal``), the untrained model (``base``), the directory of an
    adapter, or a model behind an API whose key is set.
    """
    if name in OPPONENTS or is_adapter(name):
        return
    refuse_credentials(name, field)
    if not is_api_model(name):
        known = ", ".join(OPPONENTS)
        raise InputError(
            field, f"there is no opponent {name!r}", f"Use {known}, an adapter's directory or vendor/model"
        )
    try:
        api_client(name)
    except InputError as error:
        local = "or name an opponent that plays here: random or base"
        raise InputError(
            field, f"{name} needs {error.field}, which {error.problem}", f"Set it, {local}"
        ) from error
