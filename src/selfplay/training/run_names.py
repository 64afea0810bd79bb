"""Find the directory of a run by its name or path."""

import difflib
import os
import re
from pathlib import Path

from selfplay.core import InputError

RUNS = Path("runs")
_NAME = re.compile(r"\w[\w.-]*")


def find_run(name: str, field: str = "RUN") -> Path:
    """Return the directory of an existing run.

    Args:
        name: a name in ``runs``, or a path.
        field: how an error names this argument.

    Raises:
        InputError: there is no such run.
    """
    for path in paths_of(name):
        if (path / "config.toml").is_file():
            return path
    for path in paths_of(name):
        if path.exists():
            raise InputError(field, f"{path} is not a run: it has no config.toml", _known_runs(name))
    raise InputError(field, f"there is no run {name!r}", _known_runs(name))


def is_run_or_adapter(name: str) -> bool:
    """Whether ``name`` is a run, by name or path, or an adapter's directory."""
    files = ("config.toml", "adapter_config.json")
    return any((path / file).is_file() for path in paths_of(name) for file in files)


def paths_of(name: str) -> tuple[Path, Path]:
    """Return the paths that ``name`` may mean: that directory in ``runs``, and the path itself."""
    return RUNS / name, Path(os.path.expanduser(name))


def new_run_directory(parent: Path, stem: str) -> Path:
    """Return ``parent/stem`` or, where that exists, the first free one of ``stem-2``, ``stem-3``, ..."""
    path, number = parent / stem, 1
    while path.exists():
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def named_run_directory(parent: Path, name: str) -> Path:
    """Return ``parent/name``.

    Raises:
        InputError: the name is not plain, or is taken.
    """
    if not _NAME.fullmatch(name):
        raise InputError("--name", f"{name!r} is not a plain name", "Use letters, digits, '.', '_' and '-'")
    path = parent / name
    if path.exists():
        raise InputError(
            "--name",
            f"{path} exists already",
            f"Choose another, or continue it: selfplay train --resume {path}",
        )
    return path


def _known_runs(name: str) -> str:
    runs = sorted(path.parent.name for path in RUNS.glob("*/config.toml"))
    close = difflib.get_close_matches(name, runs, n=1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(runs)}" if runs else "Train one first: selfplay train quickstart"
