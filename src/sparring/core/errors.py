"""Errors for users: one line that names the field and the fix."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from sparring.core.text import one_line

LONGEST_SHOWN = 1000
"""Characters of a value in an error's message."""

NOT_JSON = (ValueError, RecursionError)
"""What parsers of JSON and TOML raise for damage: a RecursionError for text that is nested too deeply, else a
ValueError, as is each of their own errors and those of UTF-8. For msgspec there is
``collection.serialization.UNREADABLE``."""


class SparringError(Exception):
    """Base class of every error that this package raises on purpose."""


class InputError(SparringError):
    """The user's input is wrong (config, model, environment, file). The command line exits with status 2.

    Args:
        field: the wrong input, named as the user wrote it (``env.id``, ``--games``, a path).
        problem: what is wrong with it.
        fix: how to correct it.
    """

    def __init__(self, field: str, problem: str, fix: str) -> None:
        self.field, self.problem, self.fix = field, problem, fix
        super().__init__(f"{field}: {problem}. {fix}")

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, str, str]]:
        """Rebuild the error from its three parts in another process; Python would use only its message."""
        return type(self), (self.field, self.problem, self.fix)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Let an InputError name the field, or the table that it is in, as the user wrote it."""
    try:
        yield
    except InputError as error:
        parent = next((one for one in names if error.field.startswith(f"{one}.")), "")
        field = names[parent] + error.field.removeprefix(parent) if parent else error.field
        raise InputError(names.get(error.field, field), error.problem, error.fix) from error


def refuse(options: Mapping[str, object], problem: str, fix: str) -> None:
    """Raise an InputError for the first option, by its name, that is given: neither ``None`` nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InputError(name, problem, fix)


def check_installed(field: str, extra: str, *packages: str) -> None:
    """Raise an InputError if one of the packages, which an extra of sparring installs, is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            problem = f"the package {package} is not installed"
            raise InputError(field, problem, f"Run: pip install 'sparring[{extra}]'")


def imported(field: str, extra: str, package: str, module: str | None = None) -> Any:
    """Import a package that an extra of sparring installs, and return it or the module that uses it. Raises
    InputError: it is not installed, or cannot be imported."""
    check_installed(field, extra, package)
    try:
        return importlib.import_module(module or package)
    except ImportError as error:
        problem = f"the package {package} cannot be imported ({first_line(error)})"
        fix = f"Run: pip install --force-reinstall 'sparring[{extra}]'"
        raise InputError(field, problem, fix) from error


class DamagedState(InputError):
    """A file of a saved state is missing, cannot be read or does not have its format."""


class EpisodeError(SparringError):
    """One episode failed and is not retried, because it would fail again; the others continue."""


class ContextError(EpisodeError):
    """A prompt and its longest possible answer exceed the model's context."""


class TransientError(EpisodeError):
    """A failure that may pass (a server, an engine, or a timeout), so the episode is retried."""


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt with the same seed may succeed."""
    return isinstance(error, TransientError | TimeoutError | ConnectionError)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message without its full stop, and the next after a colon."""
    lines = message_of(error).strip().splitlines() or [type(error).__name__]
    announced = lines[1].strip() if len(lines) > 1 and lines[0].endswith(":") else ""
    return f"{lines[0]} {announced}".strip().rstrip(".")


def message_of(error: BaseException) -> str:
    """Return an error's message, whatever its own ``__str__`` does."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - the class is a user's, and its message only tells what happened
        return f"{type(error).__name__} without a message"


def shown(value: object) -> str:
    """Return a value as a short text of one line, whatever its own ``__repr__`` does.

    A coroutine, which nobody can await any more, says what to write instead.
    """
    if inspect.iscoroutine(value):
        value.close()
        return f"a coroutine ({value.__qualname__} must be def, not async def)"
    try:
        names_a_file = isinstance(value, OSError) and value.filename is not None  # which its repr leaves out
        text = one_line(f"{type(value).__name__}: {value}" if names_a_file else repr(value))
    except BaseException:  # noqa: BLE001 - as above
        text = one_line(f"{type(value).__name__}(...)")
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in one line. For errors of other packages, name the file and line too."""
    if isinstance(error, SparringError):
        return message_of(error)
    frames = [*frames_of(error)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__name__}({shown(error.msg)}){_in_line(error.filename, error.lineno)}"
    if not frames:
        return shown(error)
    place = next((one for one in reversed(frames) if not is_of_a_library(one)), frames[-1])
    return f"{shown(error)}{place_of(place)}"


def place_of(frame: TracebackType) -> str:
    """Return the file and line of a frame, as the end of an error's reason."""
    return _in_line(frame.tb_frame.f_code.co_filename, frame.tb_lineno)


def _in_line(file: str, line: int) -> str:
    return f" in {Path(file).name}, line {line}"


def frames_of(error: BaseException) -> Iterator[TracebackType]:
    """Yield the frames that an error passed through, the innermost last."""
    trace = BaseException.__getattribute__(error, "__traceback__")  # a user's class may have its own
    while trace is not None:
        yield trace
        trace = trace.tb_next


def module_of(frame: TracebackType) -> str:
    """Return the name of the module of a frame."""
    return str(frame.tb_frame.f_globals.get("__name__", ""))


def is_of_a_library(frame: TracebackType) -> bool:
    """Return whether a frame is of the standard library, or of pydantic, whose objects own code is given."""
    package = module_of(frame).partition(".")[0]
    return package in sys.stdlib_module_names or package == "pydantic"


def check_failures(reasons: Sequence[str], played: int, limit: float, unit: str) -> None:
    """Raise a SparringError if a larger share than ``limit`` of the ``played`` units failed."""
    if len(reasons) > limit * played:
        raise SparringError(f"{len(reasons)} of {played} {unit} failed; the last: {reasons[-1]}")
