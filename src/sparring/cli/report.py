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
    from sparring.run.run_names import find_run

    run_dir = find_run(run)
    solo_dir = None if solo is None else find_run(solo, "--solo")
    from sparring.run.report import rebuild

    print(rebuild(run_dir, solo_dir))
