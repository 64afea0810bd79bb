"""What games of libraries need of the machine beside their library."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path


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
