"""``sparring compare``: runs side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.files import check_writable, write_text


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN ...", help="The runs, by name or path.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("comparison.html"),
) -> None:
    """Compare runs in a table and on a page with curves; seeds of one configuration become one entry."""
    check_writable("--out", out)
    from sparring.commands.compare import read_entries
    from sparring.commands.compare_page import comparison_html, comparison_text

    entries = read_entries(runs)
    page = comparison_html(entries)
    Console().print(comparison_text(entries))
    write_text(out, page)
    print(f"\npage: {out}")
