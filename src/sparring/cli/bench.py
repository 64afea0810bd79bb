"""``sparring bench``: games, recipes, rules of choosing opponents and seeds from one file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.options import print_table
from sparring.core import InputError, SparringError
from sparring.core.text import counted

_OUT_HELP = "The directory of its runs and results; by default runs/ladder- and the file's name."
_AGAINST_HELP = "An earlier ladder.json: say which cells end with the same bytes."


def bench(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ladder: a .toml file.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=_OUT_HELP)] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default two, or one on a single core.")
    ] = None,
    against: Annotated[Path | None, typer.Option(metavar="FILE", help=_AGAINST_HELP)] = None,
) -> None:
    """Train games x recipes x opponents x seeds, and compare them in one table and on one page.

    If the command was stopped or killed, give it again: it continues.
    """
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.ladder.ladder import run_ladder
    from sparring.commands.ladder.page import standings_table
    from sparring.commands.ladder.results import PAGE, RESULTS, LadderResult, differing
    from sparring.commands.ladder.standings import standings_of
    from sparring.run.progress_views import print_line

    console = Console()
    earlier = None if against is None else LadderResult.read(against)
    directory = out or Path("runs") / f"ladder-{file.stem}"
    result = run_ladder(file, directory, jobs=jobs, progress=ConsoleProgress(console))
    print_table(console, standings_table(result, standings_of(result)))
    print_line(console, f"results: {directory / RESULTS}")
    print_line(console, f"page: {directory / PAGE}")
    if earlier is not None:
        same, others = differing(result, earlier)
        if not (same or others):
            raise InputError("--against", f"{against} has none of the complete cells", "Name another")
        print_line(console, f"{counted(len(same), 'cell')} with the same bytes at the end as in {against}")
        for name in others:
            print_line(console, f"another end than in {against}: {name}")
    failed = sum(not cell.points for cell in result.cells)
    if failed:
        raise SparringError(
            f"{failed} of {len(result.cells)} cells are not complete; give the same command again"
        )
