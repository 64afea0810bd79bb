"""TOML files: those of users, and those that come with the package, such as presets."""

import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from selfplay.core import InputError


def bundled_names(folder: str) -> list[str]:
    """Return the names, without ``.toml``, of the files in a folder of this package."""
    names = [entry.name for entry in _folder(folder).iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_bundled(folder: str, name: str) -> dict[str, Any]:
    """Read one of the files in a folder of this package."""
    return tomllib.loads(_folder(folder).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def read_toml(path: str) -> dict[str, Any]:
    """Read an existing file.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(path, f"is not valid TOML: {error}", "Correct the file") from error
    except UnicodeDecodeError as error:
        raise InputError(path, "is not a text file in UTF-8", "Give a .toml file") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "Make it readable") from error


def _folder(name: str) -> Traversable:
    return files("selfplay.config").joinpath(name)
