"""``sparring play``: a person plays against a trained model, or takes a role in a program."""

from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.model_options import (
    ENV_HELP,
    GAME_OPTIONS,
    PLAYER_HELP,
    SEED,
    TEMPLATE,
    check_no_role,
    first_environment,
)
from sparring.core import InputError


def play(
    run: Annotated[str, typer.Argument(metavar="RUN", help=PLAYER_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=ENV_HELP)] = None,
    role: Annotated[str | None, typer.Option(help="For a program: the role that you play.")] = None,
    template: Annotated[str | None, TEMPLATE] = None,
    seat: Annotated[int | None, typer.Option(min=0, help="Your seat; drawn if not given.")] = None,
    seed: Annotated[int, SEED] = 0,
) -> None:
    """Play against a trained model in the terminal, or take a role in a program."""
    env = env or first_environment(run)
    if env is None and role is None:
        raise InputError("--role", "is missing: the run plays a program", "Name the role that you play")
    if env is not None:
        check_no_role(role is not None, env)
    from sparring.cli.console_progress import ConsoleProgress
    from sparring.commands.play import play as play_game
    from sparring.commands.programs import play_program
    from sparring.run.checks import renaming

    console = Console()
    progress = ConsoleProgress(console)
    if env is None:
        play_program(run, str(role), seed, console, progress)
        return
    with renaming(GAME_OPTIONS | {"seat": "--seat"}):
        play_game(run, env, template=template, seat=seat, seed=seed, console=console, progress=progress)
