"""Classes of your own, which a configuration names by file and class: ``my_program.py:MyArena``."""

import importlib.util
import inspect
import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from selfplay.core.errors import InputError

CLASS_PATH = r"^.+\.py:\w+$"
"""The form of a file and a class."""

Built = TypeVar("Built")


def is_class_path(text: str) -> bool:
    """Return whether ``text`` names a file and a class."""
    return re.match(CLASS_PATH, text) is not None


def name_of(text: str) -> str:
    """Return the name of the class if ``text`` names a file and a class, and ``text`` itself otherwise."""
    return text.rpartition(":")[2] if is_class_path(text) else text


def absolute(text: str, directory: Path) -> str:
    """Return ``text`` with its file resolved against ``directory``, if it names a file and a class."""
    return os.path.abspath(directory / os.path.expanduser(text)) if is_class_path(text) else text


def own_class(path: str, base: type, field: str) -> Any:
    """Run a file, once per process, and return a class of it.

    Args:
        path: the file and the class.
        base: the class that it must be a subclass of.
        field: the input that names the class, for errors.

    Raises:
        InputError: the file or the class does not exist, the file cannot be run, or the class is of another
            kind.
    """
    file, _, name = path.rpartition(":")
    if not Path(file).is_file():
        raise InputError(field, f"there is no file {file}", f"Give one: my_file.py:{name}")
    try:
        module = _module(Path(file).resolve())
    except Exception as error:
        raise InputError(field, f"{file} cannot be imported ({error!r})", "Correct it") from error
    kind = getattr(module, name, None)
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise InputError(
            field, f"{file} has no {base.__name__} named {name!r}", f"Name a subclass of {base.__name__}"
        )
    return kind


def build_own(
    kind: Callable[..., Built], table: str, options: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Built:
    """Return ``kind(*args, **kwargs, **options)``.

    Args:
        kind: a class of your own.
        table: the table of the configuration that names it and has its options, for errors.
        options: the user's keyword arguments.
        args: other positional arguments.
        kwargs: other keyword arguments.

    Raises:
        InputError: the class does not take these arguments, or raises.
    """
    name, signature = kind.__name__, inspect.signature(kind)
    try:
        signature.bind(*args, **kwargs, **options)
    except TypeError as error:
        takes = ", ".join([*signature.parameters][len(args) :]) or "none"
        raise InputError(
            f"{table}.options", f"{name} does not take them ({error})", f"It takes: {takes}"
        ) from error
    try:
        return kind(*args, **kwargs, **options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{table}.path", f"{name} cannot be built ({error!r})", "Correct it") from error


@lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Run a file as a module whose name cannot clash with another's."""
    name = f"selfplay_own_{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
