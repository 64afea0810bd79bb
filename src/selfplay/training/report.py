"""Rebuild a run's report."""

from pathlib import Path

from selfplay.report.page import build_report
from selfplay.training.run_directory import RunDirectory


def rebuild(run_dir: Path) -> Path:
    """Rebuild ``report.html`` from the run's files; return its path.

    Raises:
        InputError: there is no run.
    """
    return build_report(RunDirectory.open(run_dir).path)
