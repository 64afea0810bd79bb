"""``selfplay watch``: a run live in the terminal."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from selfplay.core import InputError


def watch(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's name or path; the newest if not given.")
    ] = None,
) -> None:
    """Watch a run in the terminal while it goes on, or look at a finished one."""
    if find_spec("textual") is None:
        raise InputError(
            "watch", "the package textual is not installed", "Run: pip install 'selfplay-rl[watch]'"
        )
    from selfplay.runtime.run_names import find_run

    run_dir = newest_run() if run is None else find_run(run)
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise InputError(
            "watch", "this is not a terminal", f"Run it in one, or read: selfplay report {run_dir}"
        )
    from selfplay.tracking.terminal_interface import TerminalInterface
    from selfplay.tracking.watch_data import RunDirectorySource
    from selfplay.tracking.watch_themes import is_light

    light = is_light(dict(os.environ), sys.stdin.fileno())
    TerminalInterface(RunDirectorySource(run_dir), light=light).run()


def newest_run() -> Path:
    """Return the directory of the run below ``runs`` that was begun or written to last.

    Raises:
        InputError: there is none.
    """
    from selfplay.runtime.run_names import RUNS

    found = [path.parent for path in RUNS.glob("*/config.toml")]
    if not found:
        raise InputError("RUN", "there is no run here", "Train one first: selfplay train quickstart")
    return max(found, key=_last_written)


def _last_written(run: Path) -> float:
    metrics = run / "metrics.jsonl"
    return (metrics if metrics.exists() else run / "config.toml").stat().st_mtime
