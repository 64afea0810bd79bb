"""``selfplay report``: rebuild a run's report."""

from typing import Annotated

import typer


def report(run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]) -> None:
    """Rebuild a run's report.html and print its path."""
    from selfplay.training.run_names import find_run

    run_dir = find_run(run)
    from selfplay.training.report import rebuild

    print(rebuild(run_dir))
