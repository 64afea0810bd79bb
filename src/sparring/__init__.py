"""sparring: train language models by letting them play each other. Begin with ``run/trainer.py``."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return ``OpenAIClient``, which needs the package openai and is therefore imported only if asked for."""
    if name != "OpenAIClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparring.engine.openai_client import OpenAIClient

    return OpenAIClient
