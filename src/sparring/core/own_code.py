"""The rule for code that a user writes: what it raises becomes one line that names the method.

Inside an episode the line is the reason why that episode failed, and the others continue (``retries.py``).
Everywhere else it ends the run: :func:`own_code`. No exception is exempt. ``sys.exit(0)`` in a reward
function is an error like any other, because the run is not done. Only what comes from outside passes: a
Ctrl-C, the cancellation of a task, the end of a generator.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from opcode import opmap
from types import TracebackType
from typing import Any, Protocol, TypeVar

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
from sparring.core.text import one_line

OWN_MODULE = "sparring_own_"
"""What the names of modules begin with that are files of your own, which a configuration names."""

LONGEST_REASON = 2000
"""Characters of the reason that a failed episode keeps."""

Kind = TypeVar("Kind")


@contextmanager
def own_code(what: str = "", field: str = "") -> Iterator[None]:
    """Run a user's own code; what it raises becomes one line that begins with ``what``.

    Args:
        what: what failed if the code raises, for example "the program's evaluate failed"; by default, the
            method that raised.
        field: the input that names the code, if that is at fault.

    Raises:
        InputError: the code raised, and there is a ``field``.
        SparringError: the code raised. Errors of this package pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SparringError) or is_from_outside(error):
            raise
        reason = f"{what}: {reason_of(error)}" if what else own_failure(error)
        raise (InputError(field, reason, "Correct it") if field else SparringError(reason)) from error


async def called(method: Callable[[], Awaitable[Kind]], source: str, field: str = "") -> Kind:
    """Return what an async method of a user's own code returns; ``source`` names it in the line of an error.

    Raises:
        InputError, SparringError: as for :func:`own_code`.
    """
    with own_code(f"{source} failed", field):
        return await awaitable(method(), source)


def is_from_outside(error: BaseException) -> bool:
    """Return whether an error is no fault of the code that it passes through, and must pass.

    It is a Ctrl-C, the cancellation of this task, or the end of a generator; not if a statement of that code
    raised the same.
    """
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
    """Return the reason of an error in one line, with the method that raised it if it is not this package's.

    The method is the last one that this package has called on the way to the error.
    """
    frames = [] if isinstance(error, SparringError) else [*frames_of(error)]
    if isinstance(error.__cause__, StopIteration | StopAsyncIteration):  # Python's RuntimeError hides it
        error = error.__cause__
        frames += frames_of(error)
    method = _method_called(frames)
    own = [frame for frame in frames if not (_is_ours(frame) or is_of_a_library(frame))]
    reason = f"{method} failed: {shown(error)}{place_of(own[-1])}" if method else reason_of(error)
    return one_line(reason)[:LONGEST_REASON]


def runs_own_code() -> bool:
    """Return whether this process has run a file that a configuration names."""
    return any(name.startswith(OWN_MODULE) for name in [*sys.modules])


def returned(value: object, kind: type[Kind], source: str) -> Kind:
    """Return ``value``, which the method ``source`` has returned.

    Raises:
        EpisodeError: it is of another kind.
    """
    if isinstance(value, kind):
        return value
    _check_is_awaited(value, source)
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    raise EpisodeError(f"{source} returned {shown(value)}, not {article} {kind.__name__}")


class HasState(Protocol):
    """Something of a user's own that may remember something."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""


def state_of(owner: HasState, source: str = "") -> dict[str, Any]:
    """Return the state of ``owner`` for a checkpoint; ``source`` names its method if it is not the class's.

    Raises:
        EpisodeError: its ``state_dict`` returned no dictionary, or what JSON cannot hold.
    """
    source = source or method_of(owner, "state_dict")
    state: dict[str, Any] = returned(owner.state_dict(), dict, source)
    try:
        json.dumps(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{source} returned what a checkpoint cannot hold: {error}") from error
    return state


def truth(value: object, source: str) -> bool:
    """Return ``value``, which the method ``source`` has returned, as true or false; 1 and 0 count too.

    Raises:
        EpisodeError: it is neither.
    """
    _check_is_awaited(value, source)
    if value not in (True, False):
        raise EpisodeError(f"{source} returned {shown(value)}, not true or false")
    return bool(value)


def list_of(kind: type[Kind], value: object, source: str) -> list[Kind]:
    """Return ``value`` as a list if it is one, or a tuple, of objects of a kind.

    Raises:
        EpisodeError: it is not; ``source`` says what it is.
    """
    if inspect.iscoroutine(value):
        value.close()
    if not isinstance(value, list | tuple) or not all(isinstance(one, kind) for one in value):
        raise EpisodeError(f"{source} is not a list of {kind.__name__}s, but {shown(value)}")
    return list(value)


def awaitable(value: Awaitable[Kind], source: str) -> Awaitable[Kind]:
    """Return ``value``, which a call of the method ``source`` has returned.

    Raises:
        EpisodeError: it cannot be awaited.
    """
    if not inspect.isawaitable(value):
        raise EpisodeError(f"{source} is not async; write it with async def")
    return value


def check_json(value: object, source: str) -> None:
    """Check that ``value`` can be written into a log.

    Objects that JSON does not know are written as their ``repr``, dataclasses as their fields.

    Raises:
        EpisodeError: it holds half a surrogate pair, itself, or an integer of thousands of digits; or the
            ``repr`` of an object fails.
    """
    try:
        json.dumps(value, default=_as_json, skipkeys=True, ensure_ascii=False).encode()
    except Exception as error:
        raise EpisodeError(f"{source} cannot be written as JSON: {shown(error)}") from error


def loggable(value: object) -> object:
    """Return a value that can be written into a log: itself, or a short text for it."""
    try:
        check_json(value, "it")
    except EpisodeError:
        return shown(value)
    return value


def _check_is_awaited(value: object, source: str) -> None:
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
