"""``sparring watch``: watch a run live in the terminal."""

import sys
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.core import InputError
from sparring.core.shell_command import shell_command

if TYPE_CHECKING:
    from sparring.cluster.view import ClusterSource
    from sparring.view.run_view import ViewSource


def watch(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's name or path; by default the newest.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="The run's Ray cluster: HOST:PORT, or auto for one on this machine."),
    ] = None,
) -> None:
    """Watch a run in the terminal while it is in progress, or look at a finished one."""
    _require("watch", "textual", "watch")
    with ExitStack() as opened:
        source: ViewSource
        if address is not None:
            _require("--address", "ray", "ray")
            _require_terminal("Run it in a terminal.")
            source = opened.enter_context(closing(_cluster_source(address, run)))
        else:
            run_dir, source = _directory_source(run)
            _require_terminal(f"Run it in a terminal, or use: {shell_command('report', run_dir)}")
        from sparring.view.watch.terminal_interface import TerminalInterface

        TerminalInterface(source).run()


def _require(field: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise InputError(
            field, f"the package {package} is not installed", f"Run: pip install 'sparring[{extra}]'"
        )


def _require_terminal(fix: str) -> None:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise InputError("watch", "this is not a terminal", fix)


def _cluster_source(address: str, run: str | None) -> "ClusterSource":
    from sparring.cluster.view import ClusterSource

    return ClusterSource(address, run)


def _directory_source(run: str | None) -> tuple[Path, "ViewSource"]:
    from sparring.core.files import check_kinds
    from sparring.run.run_names import find_run
    from sparring.view.source import RunDirectorySource

    run_dir = newest_run() if run is None else find_run(run)
    check_kinds(run_dir)
    return run_dir, RunDirectorySource(run_dir)


def newest_run() -> Path:
    """Return the directory of the run in ``runs`` that was started or written to last.

    Raises:
        InputError: there is no run.
    """
    from sparring.run.run_names import RUNS

    found = [path.parent for path in RUNS.glob("*/config.toml")]
    if not found:
        raise InputError("RUN", "there is no run here", "Train one first: sparring train kuhn")
    return max(found, key=_last_written)


def _last_written(run: Path) -> float:
    metrics = run / "metrics.jsonl"
    return (metrics if metrics.exists() else run / "config.toml").stat().st_mtime
