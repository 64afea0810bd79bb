"""``sparring export``: write what a run trained as files for other programs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.core import InputError


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path, or an adapter.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must not exist.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Write a whole model, with the adapter merged into its weights.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="The policy of a run that trained several.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="N|best|last", help="The checkpoint; by default the last.")
    ] = None,
    payoffs: Annotated[
        bool,
        typer.Option("--payoffs", help="Write what the members of the run's pool earned, as JSON and CSV."),
    ] = False,
) -> None:
    """Copy a run's adapter in PEFT's format, or write a Hugging Face model with --merge."""
    from sparring.commands.export import export as export_adapter
    from sparring.commands.export_payoffs import export_payoffs

    name = run if checkpoint is None else f"{run}@{checkpoint}"
    if payoffs:
        if merge or policy is not None:
            raise InputError("--payoffs", "payoffs are no model", "Leave out --merge and --policy")
        export_payoffs(name, out)
        print(f"wrote {out}")
        return
    export_adapter(name, out, merge=merge, policy=policy, console=Console())
