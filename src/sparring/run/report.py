"""Rebuild a run's report."""

from pathlib import Path

from sparring.run.run_directory import RunDirectory
from sparring.view.report.page import build_report


def rebuild(run_dir: Path, solo: Path | None = None) -> Path:
    """Rebuild ``report.html`` from the run's files; return its path.

    Args:
        run_dir: the run.
        solo: a run of a solo verifier to compare with; see :func:`sparring.view.report.page.build_report`.

    Raises:
        InputError: there is no run, or nothing to compare.
    """
    return build_report(RunDirectory.open(run_dir).path, solo)
