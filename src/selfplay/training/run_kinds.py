"""What a directory of results is: which command trains a run, or what else it holds."""

from pathlib import Path

from selfplay.core import InputError
from selfplay.core.shell_command import shell_command
from selfplay.finetune.run_files import RunFiles

PSRO_FILE, PSRO_PAGE = "psro.toml", "psro.html"
"""The configuration of a PSRO, in whose directory best responses are runs, and the page about it."""
TOURNAMENT_FILE, TOURNAMENT_PAGE = "tournament.json", "tournament.html"


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
        raise InputError("--resume", f"{run} is a run of selfplay {kind}", f"Use: {resume_command(run)}")


def kind_of(run: Path) -> str:
    """Return the command that trains a run: ``train`` or ``finetune``."""
    return "finetune" if RunFiles(run).params.exists() else "train"


def page_of_another_kind(path: Path) -> tuple[str, Path] | None:
    """Return what a directory that is not a run holds, ``a PSRO`` or ``a tournament``, and the page about it.

    ``None`` if it is neither.
    """
    if (path / PSRO_FILE).is_file():
        return "a PSRO", path / PSRO_PAGE
    if (path / TOURNAMENT_FILE).is_file():
        return "a tournament", path / TOURNAMENT_PAGE
    return None
