"""``selfplay runs`` and ``compare``: the runs of a directory, and some of them side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selfplay.cli.files import check_writable, console_of_tables, json_text, write_text


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the runs.")] = Path(
        "runs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the runs of a directory: what they train, how far they are, and what they measured last."""
    from datetime import UTC, datetime

    from selfplay.commands.list_runs import list_runs
    from selfplay.commands.runs_table import runs_table

    found = list_runs(directory)
    if as_json:
        print(json_text([run.to_dict() for run in found]), end="")
        return
    console = console_of_tables()
    if found:
        console.print(runs_table(found, datetime.now(UTC)))
    else:
        print("there are no runs here")


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN ...", help="The runs, by name or path.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("comparison.html"),
) -> None:
    """Compare runs in a table and on a page with curves; seeds of one configuration become one entry."""
    check_writable("--out", out)
    from selfplay.commands.compare import read_entries
    from selfplay.commands.compare_page import comparison_html
    from selfplay.commands.compare_table import comparison_tables

    entries = read_entries(runs)
    page = comparison_html(entries)
    Console().print(comparison_tables(entries))
    write_text(out, page)
    print(f"\npage: {out}")
