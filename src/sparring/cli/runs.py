"""``sparring runs``: the runs of a directory."""

from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.files import console_of_tables, json_text


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the runs.")] = Path(
        "runs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the runs of a directory: what they train, how far they are, and what they measured last."""
    from datetime import UTC, datetime

    from sparring.commands.list_runs import list_runs
    from sparring.commands.runs_table import runs_table

    found = list_runs(directory)
    if as_json:
        print(json_text([run.to_dict() for run in found]), end="")
        return
    console = console_of_tables()
    if found:
        console.print(runs_table(found, datetime.now(UTC)))
    else:
        print("there are no runs here")
