"""Classes and functions of your own, which a configuration names by file: ``my_program.py:MyArena``."""

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
from typing import Any, TypeVar, cast

from sparring.core.errors import InputError
from sparring.core.own_code import OWN_MODULE, own_code

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
    kind = _named_in(path, field)
    if not isinstance(kind, type) or not issubclass(kind, base):
        file, _, name = path.rpartition(":")
        raise InputError(
            field, f"{file} has no {base.__name__} named {name!r}", f"Name a subclass of {base.__name__}"
        )
    return kind


def own_function(path: str, field: str) -> Callable[..., Any]:
    """Run a file, once per process, and return a function of it.

    Args:
        path: the file and the function.
        field: the input that names the function, for errors.

    Raises:
        InputError: the file or the function does not exist, or the file cannot be run.
    """
    function = _named_in(path, field)
    if not callable(function):
        file, _, name = path.rpartition(":")
        raise InputError(field, f"{file} has no function named {name!r}", "Name one that it has")
    return cast(Callable[..., Any], function)


def own_object(path: str, base: type, field: str) -> Any:
    """Run a file, once per process, and return an object of it, or one of a class of it.

    Args:
        path: the file and the name: of an object of the class ``base``, or of a subclass without arguments.
        base: the class.
        field: the input that names the object, for errors.

    Raises:
        InputError: the file or the name does not exist, the file cannot be run, or the name is that of
            something else.
    """
    named = _named_in(path, field)
    if isinstance(named, base):
        return named
    kind = own_class(path, base, field)
    with own_code(f"{kind.__name__} cannot be built", field):
        return kind()


def _named_in(path: str, field: str) -> object:
    """Run a file and return what it has under the name; ``None`` if it has nothing."""
    file, _, name = path.rpartition(":")
    if not Path(file).is_file():
        raise InputError(field, f"there is no file {file}", f"Give one: my_file.py:{name}")
    with own_code(f"{file} cannot be imported", field):
        module = _module(Path(file).resolve())
    return getattr(module, name, None)


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
    with own_code(f"{name} cannot be built", f"{table}.path"):
        return kind(*args, **kwargs, **options)


def is_own(thing: object) -> bool:
    """Return whether an object is of a class of yours, or of a subclass."""
    return any(kind.__module__.startswith(OWN_MODULE) for kind in type(thing).__mro__)


@lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Run a file as a module whose name cannot clash with another's."""
    name = f"{OWN_MODULE}{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
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
