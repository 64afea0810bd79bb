"""``sparring reference``: members that never change, by which results of different months are comparable."""

from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.options import print_table
from sparring.core import InputError
from sparring.core.errors import renaming


def reference(
    env: Annotated[str, typer.Option(metavar="ID", help="The game.")],
    train: Annotated[
        bool, typer.Option("--train", help="Train the pool's adapters here, if it has some.")
    ] = False,
) -> None:
    """Show the reference pool of a game: its members and their ratings, which `@reference` plays with.

    Where no solver covers the game, some members are adapters, which this machine trains once.
    """
    from sparring.commands.reference_adapters import pool_table, train_reference
    from sparring.evaluation.reference import reference_pool

    console = Console()
    with renaming({"env.id": "--env"}):
        pool = reference_pool(env)
    if train and not pool.adapters:
        raise InputError("--train", f"the pool of {env} has scripts only", "Leave it out")
    if train:
        train_reference(env, console)
    print_table(console, pool_table(pool))
