"""``sparring report``: rebuild a run's report."""

from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")],
    solo: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A solo verifier's run, to show beside a run of sparring finetune."),
    ] = None,
) -> None:
    """Rebuild a run's report.html and print its path."""
    from sparring.run.run_directory import RunDirectory
    from sparring.run.run_names import find_run
    from sparring.view.report.page import build_report

    run_dir = find_run(run)
    solo_dir = None if solo is None else find_run(solo, "--solo")

    print(build_report(RunDirectory.open(run_dir).path, solo_dir))
