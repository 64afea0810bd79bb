"""Rebuilding a run's report."""

from pathlib import Path

from selfplay.runtime.run_directory import RunDirectory
from selfplay.tracking.report import build_report


def rebuild(run_dir: Path) -> Path:
    """Build ``report.html`` anew from what the run wrote; returns its path.

    Raises:
        InputError: there is no run.
    """
    return build_report(RunDirectory.open(run_dir).path)
