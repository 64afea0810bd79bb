"""Models that live elsewhere: behind an API, or in a directory beside the run."""

from pathlib import Path

from selfplay.core import InferenceClient, InputError
from selfplay.envs.scripted import PLAYER_NAMES

LOCAL_NAMES = (*PLAYER_NAMES, "base")
"""Opponents that need neither a key nor a network."""


def is_api_model(name: str) -> bool:
    """Whether a name means a model behind an API: ``vendor/model`` or ``model@http://host/v1``."""
    return "@http" in name or ("/" in name and not is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a name is the directory of an adapter."""
    return (Path(name) / "adapter_config.json").is_file()


def api_client(name: str) -> InferenceClient:
    """A client for a model behind an API.

    ``google/gemini-2.0-flash-lite-001`` is asked of OpenRouter, ``model@http://127.0.0.1:8000/v1`` of that
    server.

    Raises:
        InputError: the key that it takes is not in the environment.
    """
    from selfplay.inference.openai_client import OpenAIClient

    model, at, url = name.partition("@")
    return OpenAIClient(model=model, base_url=url) if at else OpenAIClient.for_openrouter(model=name)


def check_opponent_name(name: str, field: str) -> None:
    """Raise an InputError unless an opponent of this name can play here.

    It is scripted (``random``, ``optimal``), the untrained model (``base``), the directory of an adapter, or
    a model behind an API whose key is set.
    """
    if name in LOCAL_NAMES or is_adapter(name):
        return
    if not is_api_model(name):
        known = ", ".join(LOCAL_NAMES)
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
