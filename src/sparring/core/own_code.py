"""Code that a user writes: what a file is asked for, and the rule that what it raises becomes one line that
names the method.

Inside an episode the line is why that episode failed, and the others continue. Everywhere else it ends the
run. No exception is exempt, not even ``sys.exit(0)``. Only what comes from outside passes: a Ctrl-C, the
cancellation of a task, the end of a generator.
"""

import asyncio
import inspect
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from opcode import opmap
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from sparring.core.errors import (
    EpisodeError,
    InputError,
    SparringError,
    frames_of,
    is_of_a_library,
    module_of,
    place_of,
    reason_of,
    shown,
)
from sparring.core.files import located
from sparring.core.messages import Messages, as_messages, check_text
from sparring.core.own_modules import own_module
from sparring.core.text import one_line

CLASS_PATH = r"^.+\.py:\w+$"
"""The form of a file and a class."""

Built = TypeVar("Built")


def is_class_path(text: str) -> bool:
    """Return whether ``text`` names a file and a class. One with a library's name before it, as in
    ``pettingzoo:my_game.py:env``, does not; a drive of Windows has one letter."""
    return re.match(CLASS_PATH, text) is not None and re.match(r"\w\w+:", text) is None


def name_of(text: str) -> str:
    """Return the name of the class if ``text`` names a file and a class, and ``text`` itself otherwise."""
    return text.rpartition(":")[2] if is_class_path(text) else text


def with_file(text: str, change: Callable[[str], str]) -> str:
    """Return ``text`` with another file, if it names a file and a class."""
    file, _, name = text.rpartition(":")
    return f"{change(file)}:{name}" if is_class_path(text) else text


def resolving(directory: Path) -> Callable[[str], str]:
    """Return what makes the path of a file absolute that is relative to ``directory``."""
    return lambda file: os.path.abspath(directory / os.path.expanduser(file))


def absolute(text: str, directory: Path) -> str:
    """Return ``text`` with its file resolved against ``directory``, if it names a file and a class."""
    return with_file(text, resolving(directory))


def own_class(path: str, base: type, field: str) -> Any:
    """Run a file, once per process, and return its subclass of ``base``. ``field`` names the input in
    errors."""
    kind = own_named(path, field)
    if not isinstance(kind, type) or not issubclass(kind, base):
        file, _, name = path.rpartition(":")
        raise InputError(
            field, f"{file} has no {base.__name__} named {name!r}", f"Name a subclass of {base.__name__}"
        )
    return kind


def own_function(path: str, field: str) -> Callable[..., Any]:
    """Run a file, once per process, and return its function. ``field`` names the input in errors."""
    function = own_named(path, field)
    if not callable(function):
        file, _, name = path.rpartition(":")
        raise InputError(field, f"{file} has no function named {name!r}", "Name one that it has")
    return cast(Callable[..., Any], function)


def own_object(path: str, base: type, field: str) -> Any:
    """Run a file, once per process, and return its object of the class ``base``, or one of its subclass,
    which takes no arguments."""
    named = own_named(path, field)
    if isinstance(named, base):
        return named
    kind = own_class(path, base, field)
    with own_code(f"{kind.__name__} cannot be built", field):
        return kind()


def own_named(path: str, field: str) -> object:
    """Run a file, once per process, and return what it names so; ``None`` if nothing. ``field`` names the
    input in errors."""
    file, _, name = path.rpartition(":")
    if not located(file).is_file():
        raise InputError(field, f"there is no file {file}", f"Give one: my_file.py:{name}")
    with own_code(f"{file} cannot be imported", field):
        module = own_module(os.path.abspath(file))
    return getattr(module, name, None)


def build_own(
    kind: Callable[..., Built], table: str, options: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Built:
    """Return ``kind(*args, **kwargs, **options)``; raise an InputError on ``table`` if it does not take them
    or raises.

    ``table`` is the configuration's, which names the class and has the user's ``options``.
    """
    check_takes(kind, f"{table}.options", options, *args, **kwargs)
    with own_code(f"{kind.__name__} cannot be built", f"{table}.path"):
        return kind(*args, **kwargs, **options)


def check_takes(
    kind: Callable[..., object], field: str, options: Mapping[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Raise an InputError on ``field`` if ``kind`` does not take the user's ``options`` beside the others."""
    signature = inspect.signature(kind)
    try:
        signature.bind(*args, **kwargs, **options)
    except TypeError as error:
        takes = ", ".join([*signature.parameters][len(args) :]) or "none"
        problem = f"{kind.__name__} does not take them ({error})"
        raise InputError(field, problem, f"It takes: {takes}") from error


LONGEST_REASON = 2000
"""Characters of the reason that a failed episode keeps."""

Kind = TypeVar("Kind")


@contextmanager
def own_code(what: str = "", field: str = "") -> Iterator[None]:
    """Run a user's own code; what it raises becomes an InputError on ``field``, or without one a
    SparringError.

    The line begins with ``what``, for example "the program's evaluate failed", or with the method that
    raised. Errors of this package pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SparringError) or is_from_outside(error):
            raise
        reason = f"{what}: {reason_of(error)}" if what else own_failure(error)
        raise (InputError(field, reason, "Correct it") if field else SparringError(reason)) from error


async def called(method: Callable[[], Awaitable[Kind]], source: str, field: str = "") -> Kind:
    """Return what an async method of a user's own code returns; ``source`` names it in errors."""
    with own_code(f"{source} failed", field):
        return await awaitable(method(), source)


def is_from_outside(error: BaseException) -> bool:
    """Return whether an error is no fault of the code that it passes through: a Ctrl-C, the cancellation of
    this task or the end of a generator, unless a statement of that code raised it."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # there is no event loop, so nothing can have been cancelled
            return False
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit) and not _is_raised_by_a_statement(error)


def _is_raised_by_a_statement(error: BaseException) -> bool:
    """Return whether a ``raise`` made the error, not the interpreter or asyncio's handler of signals."""
    frames = [*frames_of(error)]
    if not frames:
        return False
    innermost = frames[-1]
    code, place = innermost.tb_frame.f_code.co_code, innermost.tb_lasti
    return code[place] == opmap["RAISE_VARARGS"] and module_of(innermost) != "asyncio.runners"


def own_failure(error: BaseException) -> str:
    """Return the reason of an error in one line, with the last method that this package called before it."""
    frames = [] if isinstance(error, SparringError) else [*frames_of(error)]
    if isinstance(error.__cause__, StopIteration | StopAsyncIteration):  # Python's RuntimeError hides it
        error = error.__cause__
        frames += frames_of(error)
    method = _method_called(frames)
    own = [frame for frame in frames if not (_is_ours(frame) or is_of_a_library(frame))]
    reason = f"{method} failed: {shown(error)}{place_of(own[-1])}" if method else reason_of(error)
    return one_line(reason)[:LONGEST_REASON]


def returned(value: object, kind: type[Kind], source: str) -> Kind:
    """Return ``value``, which the method ``source`` has returned; raise an EpisodeError if it is of another
    kind."""
    if isinstance(value, kind):
        return value
    check_is_awaited(value, source)
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    raise EpisodeError(f"{source} returned {shown(value)}, not {article} {kind.__name__}")


def text_of(value: object, source: str) -> str:
    """Return the text that the method ``source`` has returned; raise an EpisodeError for anything else."""
    text = returned(value, str, source)
    try:
        check_text(text)
    except ValueError as error:
        raise EpisodeError(f"{source}: {error}") from error
    return text


def messages_of(value: Any, source: str) -> Messages:
    """Return the messages that ``source`` has returned; raise an EpisodeError for anything else."""
    try:
        return as_messages(value)
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"{source}: {error}") from error


def state_of(owner: Any, source: str = "") -> dict[str, Any]:
    """Return the state of ``owner`` for a checkpoint; raise an EpisodeError if JSON cannot hold it."""
    source = source or method_of(owner, "state_dict")
    state: dict[str, Any] = returned(owner.state_dict(), dict, source)
    try:
        json.dumps(state)
        _check_names(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{source} returned what a checkpoint cannot hold: {error}") from error
    return state


def _check_names(value: object) -> None:
    """Raise a TypeError if a dictionary in ``value`` has a key that is no text: JSON would make it one."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"the key {name!r} is no text, and would come back as one")
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            _check_names(one)


def truth(value: object, source: str) -> bool:
    """Return ``value``, which the method ``source`` has returned, as true or false; 1 and 0 count too."""
    check_is_awaited(value, source)
    if value not in (True, False):
        raise EpisodeError(f"{source} returned {shown(value)}, not true or false")
    return bool(value)


def list_of(kind: type[Kind], value: object, source: str) -> list[Kind]:
    """Return ``value`` as a list; raise an EpisodeError if it is no list or tuple of that kind."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, kind) for one in value):
        raise EpisodeError(f"{source} is not a list of {kind.__name__}s, but {shown(value)}")
    return list(value)


def awaitable(value: Awaitable[Kind], source: str) -> Awaitable[Kind]:
    """Return ``value``, which a call of ``source`` has returned; raise an EpisodeError if it cannot be
    awaited."""
    if not inspect.isawaitable(value):
        raise EpisodeError(f"{source} is not async; write it with async def")
    return value


def check_json(value: object, source: str) -> None:
    """Raise an EpisodeError if ``value`` cannot be written into a log, where objects that JSON does not know
    are their ``repr`` and dataclasses their fields."""
    try:
        json.dumps(value, default=_as_json, skipkeys=True, ensure_ascii=False).encode()
    except Exception as error:
        raise EpisodeError(f"{source} cannot be written as JSON: {shown(error)}") from error


def loggable(value: object) -> object:
    """Return a value, or a short text for it if it cannot be written into a log."""
    try:
        check_json(value, "it")
    except EpisodeError:
        return shown(value)
    return value


def check_is_awaited(value: object, source: str) -> None:
    """Raise an EpisodeError if the method ``source``, which nobody awaits, has returned a coroutine."""
    if inspect.iscoroutine(value):
        value.close()
        raise EpisodeError(f"{source} is async, but is not awaited; write it with def")


def _as_json(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return list(value) if isinstance(value, set | frozenset) else repr(value)


def method_of(owner: object, name: str) -> str:
    """Return the name of a method for errors, as ``Class.method``."""
    return f"{type(owner).__name__}.{name}"


def _method_called(frames: list[TracebackType]) -> str:
    method, called_by_us = "", False
    for frame in frames:
        if is_of_a_library(frame):
            continue
        if called_by_us and not _is_ours(frame):
            method = frame.tb_frame.f_code.co_qualname.rpartition("<locals>.")[2]
        called_by_us = _is_ours(frame)
    return method


def _is_ours(frame: TracebackType) -> bool:
    return module_of(frame).partition(".")[0] == "sparring"
