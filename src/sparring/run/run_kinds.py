"""What a directory of results is: which command trains a run, or what else it holds."""

from pathlib import Path

from sparring.core import InputError
from sparring.core.shell_command import shell_command
from sparring.evaluation.tournament_files import PAGE as TOURNAMENT_PAGE
from sparring.evaluation.tournament_files import SETTINGS as TOURNAMENT_FILE
from sparring.finetune.run_files import RunFiles

PSRO_FILE, PSRO_PAGE = "psro.toml", "psro.html"
"""The configuration of a PSRO, in whose directory best responses are runs, and the page about it."""


def resume_command(run: Path) -> str:
    """Return the command that continues a run."""
    return shell_command(kind_of(run), "--resume", run)


def check_kind(run: Path, command: str) -> None:
    """Check that a command continues this kind of run.

    Raises:
        InputError: another one does.
    """
    kind = kind_of(run)
    if kind != command:
        raise InputError("--resume", f"{run} is a run of sparring {kind}", f"Use: {resume_command(run)}")


def kind_of(run: Path) -> str:
    """Return the command that trains a run: ``train`` or ``finetune``."""
    return "finetune" if RunFiles(run).params.exists() else "train"


def check_is_run(path: Path, field: str) -> None:
    """Check that a directory is not a PSRO or a tournament.

    Args:
        path: the directory.
        field: how an error names it.

    Raises:
        InputError: it is one; the error says what to do with it.
    """
    for file, kind, command, page in (
        (PSRO_FILE, "a PSRO", "psro", PSRO_PAGE),
        (TOURNAMENT_FILE, "a tournament", "tournament", TOURNAMENT_PAGE),
    ):
        if (path / file).is_file():
            again = f"sparring {command}, given again, continues it"
            shown = field != "--resume" and (path / page).is_file()
            raise InputError(
                field, f"{path} is not a run but {kind}", f"Open {path / page}" if shown else again
            )
