"""Saved states, of which the newest that is whole is loaded."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sparring.core import InputError
from sparring.core.adapters import STATE_FILE
from sparring.core.errors import NOT_JSON, DamagedState
from sparring.core.files import remove_directory
from sparring.core.manifest import check_files, damaged

DAMAGED = ".damaged"
"""``.NAME.damaged`` is a saved state that could not be read."""
_SET_ASIDE = re.compile(rf"\.(step-)?\d+{re.escape(DAMAGED)}")
Loaded = TypeVar("Loaded")
State = TypeVar("State", bound=msgspec.Struct)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise DamagedState if it is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, *NOT_JSON) as error:
        raise damaged(path) from error
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def read_state(directory: Path, form: type[State], expected: int) -> tuple[State, dict[str, Any]]:
    """Return the state in a saved directory, whose files are all checked: typed, and as it is.

    Raises DamagedState if a file is damaged or a field has another type, InputError if it has another format.
    """
    check_files(directory)
    state = read_json(directory / STATE_FILE)
    if not isinstance(state.get("format"), int):
        raise damaged(directory / STATE_FILE)
    if state["format"] != expected:
        problem = f"{directory} was saved by another version of sparring"
        fix = "Resume with the version that started the run, or start a new run."
        raise InputError("checkpoint", problem, fix)
    try:
        return msgspec.convert(state, form), state
    except msgspec.ValidationError as error:
        raise damaged(directory / STATE_FILE) from error


def newest_whole(
    numbers: Sequence[int], place: Callable[[int], Path], load: Callable[[int], Loaded]
) -> tuple[Loaded, str | None]:
    """Load the newest of several saved states, oldest first, that is not damaged.

    Newer states that are damaged are not tried again: the newest of them is renamed to ``.NAME.damaged``, and
    the others, with those of earlier calls, are deleted. The second result is a line to show to the user if
    an older state than the last was loaded. Raises DamagedState, about the newest, if all are damaged.
    """
    damaged: list[tuple[Path, DamagedState]] = []
    for number in reversed(numbers):
        try:
            loaded = load(number)
        except DamagedState as error:
            damaged.append((place(number), error))
            continue
        if not damaged:
            return loaded, None
        _set_aside([directory for directory, _ in damaged])
        names = [directory.name for directory, _ in damaged]
        problem = damaged[0][1].problem if len(names) == 1 else f"{_together(names)} are damaged"
        return loaded, f"{problem}; continuing from {place(number).name}"
    newest, tried = damaged[0][1], _together([directory.name for directory, _ in damaged])
    problem = f"{newest.problem}; every checkpoint was tried ({tried})"
    raise DamagedState(newest.field, problem, "Restore the file, or start a new run") from newest


def _together(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _set_aside(damaged: list[Path]) -> None:
    newest, *others = damaged
    earlier = [path for path in newest.parent.iterdir() if _SET_ASIDE.fullmatch(path.name)]
    for directory in [*others, *earlier]:
        remove_directory(directory)
    newest.rename(newest.with_name(f".{newest.name}{DAMAGED}"))
