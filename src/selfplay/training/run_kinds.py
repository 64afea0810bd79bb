"""Which command trains a run: ``selfplay train`` or ``selfplay finetune``."""

from pathlib import Path

from selfplay.core import InputError
from selfplay.core.shell_command import shell_command
from selfplay.finetune.run_files import RunFiles


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
