"""TOML files: those of users, and those that come with the package, such as presets."""

import json
import re
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sparring.core import InputError

EXTENDS = "extends"
OF_EXTENDS = "The preset, or the file beside this one, over which this file is laid."
MAX_BYTES = 500_000
"""The largest file of a user's that is read."""
MAX_KEYS = 50
"""The most parts that a dotted name has."""
_LONG_NAME = re.compile(
    rf"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*\.[ \t]*){{{MAX_KEYS}}}[\w"'-]"""
)


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(value: Any) -> str:
    """Return a value as TOML has it in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")  # TOML allows no DEL
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        entries = (
            f"{key if _BARE.fullmatch(key) else toml_text(key)} = {toml_text(one)}"
            for key, one in value.items()
        )
        return f"{{{', '.join(entries)}}}"
    return str(value)


def bundled_names(folder: str) -> list[str]:
    """Return the names, without ``.toml``, of the files in a folder of this package; those in a folder of it
    come last, as ``papers/spiral``."""
    entries = list(_folder(folder).iterdir())
    names = [entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")]
    inner = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("_")]
    return sorted(names) + [
        f"{one}/{name}" for one in sorted(inner) for name in bundled_names(f"{folder}/{one}")
    ]


def read_bundled(folder: str, name: str) -> dict[str, Any]:
    """Read one of the files in a folder of this package."""
    return tomllib.loads(bundled_text(folder, name))


def bundled_text(folder: str, name: str) -> str:
    """Return the text of one of these files."""
    return _folder(folder).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def read_toml(path: str) -> dict[str, Any]:
    """Read an existing file.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    if not Path(path).is_file():
        raise InputError(path, "is not a file", "Give a .toml file")
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(path, f"has more than {MAX_BYTES} bytes", "Give a .toml file")
        return parse_toml(content.decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(path, f"is not valid TOML: {error}", "Correct the file") from error
    except UnicodeDecodeError as error:
        raise InputError(path, "is not a text file in UTF-8", "Give a .toml file") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "Make it readable") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text.

    Raises:
        TOMLDecodeError: it is not TOML, or it is what Python's parser fails on: numbers of thousands of
            digits, brackets in a thousand others, a name of thousands of parts.
    """
    if len(text) > MAX_BYTES:
        raise tomllib.TOMLDecodeError(f"It has more than {MAX_BYTES} characters")
    if _LONG_NAME.search(text):
        raise tomllib.TOMLDecodeError(f"A name has more than {MAX_KEYS} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError("A number has too many digits") from error
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("Brackets are nested too deep") from error


def _folder(name: str) -> Traversable:
    return files("sparring.config").joinpath(name)
