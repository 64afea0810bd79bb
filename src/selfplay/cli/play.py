"""``selfplay play``: a person plays against a trained model, or takes a role in a program."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selfplay.cli.model_options import (
    ENV_HELP,
    PLAYER_HELP,
    TEMPLATE_HELP,
    check_no_role,
    checked_seats,
    first_environment,
)
from selfplay.core import InputError
from selfplay.core.own_classes import absolute


def play(
    run: Annotated[str, typer.Argument(metavar="RUN", help=PLAYER_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=ENV_HELP)] = None,
    role: Annotated[str | None, typer.Option(help="For a program: the role that you play.")] = None,
    template: Annotated[str | None, typer.Option(help=TEMPLATE_HELP)] = None,
    seat: Annotated[int | None, typer.Option(min=0, help="Your seat; drawn if not given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
) -> None:
    """Play against a trained model in the terminal, or take a role in a program."""
    env = env or first_environment(run)
    if env is None:
        _play_role(run, role, seed)
        return
    check_no_role(role is not None, env)
    env = absolute(env, Path())
    checked_seats(env, None, template)
    from selfplay.commands.model_source import find_player
    from selfplay.training.progress_views import working

    find_player(run)
    console = Console()
    with working(console, "importing torch"):
        from selfplay.commands.play import play as play_game

    play_game(run, env, template=template, seat=seat, seed=seed, console=console)


def _play_role(run: str, role: str | None, seed: int) -> None:
    from selfplay.training.progress_views import working

    if role is None:
        raise InputError("--role", "is missing: the run plays a program", "Name the role that you play")
    console = Console()
    with working(console, "importing torch"):
        from selfplay.commands.programs import play_program

    play_program(run, role, seed, console)
