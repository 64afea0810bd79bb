"""The ids of both libraries, available without creating a game."""

import difflib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def textarena_facts() -> dict[str, dict[str, Any]]:
    """Return facts by id: ``players``; ``reason`` if not playable; ``needs`` if the machine may supply it."""
    text = files("sparring.envs").joinpath("textarena_offline.json").read_text(encoding="utf-8")
    facts: dict[str, dict[str, Any]] = json.loads(text)
    return facts


def suggest(env_id: str) -> str:
    """Return the fix for an unknown id: the most similar known ids of either library, at most three.

    ``python_...`` games of OpenSpiel are left out: they are registered only after an import of its Python
    package.
    """
    import pyspiel

    names = [name for name in pyspiel.registered_names() if not name.startswith("python_")]
    known = {name.lower(): name for name in [*names, *textarena_facts()]}
    close = difflib.get_close_matches(env_id.lower(), known)
    return f"Did you mean {', '.join(known[name] for name in close)}?" if close else "See: sparring envs"
