"""The ids of both libraries, and what their games need of the machine, without creating a game."""

import difflib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
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


def has_nltk_words() -> bool:
    """Return whether NLTK would find its list of words. It is not imported, which takes a second."""
    places = os.environ.get("NLTK_DATA", "").split(os.pathsep)
    roots = [Path(place) for place in places if place]
    roots += [Path.home() / "nltk_data"]
    roots += [Path(sys.prefix, part, "nltk_data") for part in ("", "share", "lib")]
    roots += [Path("/usr", part, "nltk_data") for part in ("share", "local/share", "lib", "local/lib")]
    return any((root / "corpora" / name).exists() for root in roots for name in ("words", "words.zip"))


NEEDS: dict[str, Callable[[], bool]] = {
    "python3.12": lambda: sys.version_info >= (3, 12),
    "openrouter": lambda: "OPENROUTER_API_KEY" in os.environ,
    "gym": lambda: importlib.util.find_spec("gym") is not None,
    "nltk-words": has_nltk_words,
}
"""Whether the machine has what a game needs, by the name of the need in ``textarena_offline.json``."""
