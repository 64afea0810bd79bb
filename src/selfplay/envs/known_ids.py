"""The ids of both libraries, without making any game."""

import difflib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def textarena_facts() -> dict[str, dict[str, Any]]:
    """Facts by id: ``players``; ``reason`` of an obstacle; ``needs`` where the machine may lift it."""
    text = files("selfplay.envs").joinpath("textarena_offline.json").read_text(encoding="utf-8")
    facts: dict[str, dict[str, Any]] = json.loads(text)
    return facts


def suggest(env_id: str) -> str:
    """Return what to do about an unknown id: the known ids most like it, of either library.

    Games that OpenSpiel's Python package registers besides (``python_...``) are left out: they are known only
    after something has imported it.
    """
    import pyspiel

    names = [name for name in pyspiel.registered_names() if not name.startswith("python_")]
    known = {name.lower(): name for name in [*names, *textarena_facts()]}
    close = difflib.get_close_matches(env_id.lower(), known, n=3)
    return f"Did you mean {', '.join(known[name] for name in close)}?" if close else "See: selfplay envs"
