"""Find the directory of a run, or of one of its checkpoints, by its name or path."""

import difflib
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, MIXTURE_FILE
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import check_is_run, kind_of, other_name_or_continue

RUNS = Path("runs")
LAST, BEST = "last", "best"
_NAME = re.compile(r"\w[\w.-]*")
_LONGEST_NAME = 200
"""Of a run, so that its directory can also have a number at the end."""


def find_run(name: str, field: str = "RUN") -> Path:
    """Return the directory of an existing run by its name in ``runs`` or its path.

    ``field`` is how an error names this argument. Raises InputError if there is no such run.
    """
    for path in paths_of(name):
        if (path / "config.toml").is_file():
            return path
    for path in paths_of(name):
        check_is_run(path, field)
        if path.exists():
            raise InputError(field, f"{path} is not a run: it has no config.toml", _known_runs(name))
    raise InputError(field, f"there is no run {name!r}", _known_runs(name))


def is_run_or_adapter(name: str) -> bool:
    """Whether ``name`` is a run, by name or path, one of its checkpoints, an adapter or a mixture."""
    files = ("config.toml", ADAPTER_CONFIG)
    run, _ = split_checkpoint(name)
    trained = any((path / file).is_file() for path in paths_of(run) for file in files)
    return trained or find_mixture(name) is not None


def find_mixture(name: str) -> Path | None:
    """Return the file of the mixture that ``name`` means: its path, or its directory's name or path."""
    for path in paths_of(name):
        if (path / MIXTURE_FILE).is_file():
            return path / MIXTURE_FILE
        if path.name == MIXTURE_FILE and path.is_file():
            return path
    return None


def split_checkpoint(name: str) -> tuple[str, str]:
    """Return the run and its checkpoint in ``RUN@120``, ``RUN@best`` or ``RUN@last``, which ``RUN`` means."""
    run, at, checkpoint = name.rpartition("@")
    if not at or any(path.exists() for path in paths_of(name)):
        return name, LAST
    return run, checkpoint


def find_checkpoint(run: RunDirectory, checkpoint: str, name: str) -> Path:
    """Return the directory of a run's checkpoint: a number of updates, ``best`` or ``last``.

    ``name`` is how an error names it. Raises InputError if there is none.
    """
    saved, bests = run.saved_steps(), run.best_steps()
    if checkpoint == LAST:
        if not saved and kind_of(run.path) == "finetune":
            problem = "its models are at the API that trained them, not in the run"
            raise InputError(name, problem, "Ask there for the names in its state.json")
        if not saved:
            raise InputError(name, "this run has no checkpoint yet", "Train it first.")
        return run.checkpoint(saved[-1])
    if checkpoint == BEST:
        if not bests:
            fix = "It is kept with run.keep_best, after an evaluation of a policy that can be played."
            raise InputError(name, "this run has no best adapter", fix)
        return run.best(bests[-1])
    if not checkpoint.isdecimal():
        raise InputError(name, f"{checkpoint!r} is no checkpoint", "Give a number of updates, best or last.")
    step = int(checkpoint)
    if step not in (*saved, *bests):
        found = ", ".join(map(str, sorted({*saved, *bests}))) or "none yet"
        raise InputError(name, f"this run has no checkpoint of update {step}", f"There are: {found}")
    return run.checkpoint(step) if step in saved else run.best(step)


def paths_of(name: str) -> tuple[Path, Path]:
    """Return the paths that ``name`` may mean: that directory in ``runs``, and the path itself."""
    return RUNS / name, Path(os.path.expanduser(name))


def run_directory(parent: Path, name: str | None, stem: str) -> Path:
    """Return the directory of a new run: ``parent/name``, or without a name one called after ``stem``."""
    return new_run_directory(parent, stem) if name is None else named_run_directory(parent, name)


def new_run_directory(parent: Path, stem: str) -> Path:
    """Return ``parent/stem`` or, where that exists, the first free one of ``stem-2``, ``stem-3``, ..."""
    _check_parent(parent)
    stem = stem.encode()[:_LONGEST_NAME].decode(errors="ignore")
    path, number = parent / stem, 1
    while path.exists():
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def named_run_directory(parent: Path, name: str) -> Path:
    """Return ``parent/name``; raise an InputError if the name is not plain, or is taken."""
    check_plain_name(name)
    _check_parent(parent)
    path = parent / name
    if path.exists() and not RunDirectory(path).never_began():
        raise InputError("--name", f"{path} exists already", other_name_or_continue(path))
    return path


def check_plain_name(name: str) -> None:
    """Raise an InputError unless the name of a directory for results is plain."""
    if len(name) > _LONGEST_NAME:
        raise InputError("--name", f"has {len(name)} characters", f"Use {_LONGEST_NAME} or fewer")
    if not _NAME.fullmatch(name):
        raise InputError("--name", f"{name!r} is not a plain name", "Use letters, digits, '.', '_' and '-'")


def _check_parent(parent: Path) -> None:
    existing = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError("run.directory", f"{existing} is not a directory", "Choose another place")
    try:
        TemporaryDirectory(dir=existing, prefix=".sparring-").cleanup()
    except OSError as error:
        problem = f"nothing can be written in {existing} ({error.strerror})"
        raise InputError("run.directory", problem, "Choose another place") from error


def close_run(name: str) -> str | None:
    """Return the run in ``runs`` whose name is most like ``name``; ``None`` if none is like it."""
    close = difflib.get_close_matches(name, _runs(), n=1)
    return close[0] if close else None


def _runs() -> list[str]:
    return sorted(path.parent.name for path in RUNS.glob("*/config.toml"))


def _known_runs(name: str) -> str:
    runs, close = _runs(), close_run(name)
    if close is not None:
        return f"Did you mean {close}?"
    return f"There are: {', '.join(runs)}" if runs else "Train one first: sparring train kuhn"


def last_part(name: str) -> str:
    """Return the last part of a path that exists, with its checkpoint; any other name unchanged."""
    run, checkpoint = split_checkpoint(name)
    path = Path(os.path.expanduser(run))
    short = path.resolve().name if path.exists() else run
    return short if run == name else f"{short}@{checkpoint}"
