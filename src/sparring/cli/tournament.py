"""``sparring tournament``: everybody against everybody."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.files import console_of_tables
from sparring.cli.model_options import GAME_OPTIONS, SEED, TEMPERATURE, TEMPLATE, first_environment

_MEMBER_HELP = (
    "A run (RUN, RUN@120, RUN@best, or RUN@all for every checkpoint that it keeps), an adapter, base, "
    "random, optimal, a mixture (see: sparring psro), or a model behind an API (vendor/model, "
    "model@http://host/v1)."
)
_GAMES_HELP = (
    "Games of each pair or group, the same number in each order of seats; with --budget the first ones. By "
    "default 200, or 20."
)
_BUDGET_HELP = "Games in total. After the first games, the rest go to the pairs whose order is still open."
_NASH_CONV_HELP = "Also compute NashConv of every model that is served here (small OpenSpiel games)."
_ENV_HELP = "The game (see: sparring envs); by default the first one of the first run, or its program."
_OUT_HELP = "The tournament's directory. If it holds an unfinished one, that goes on."
_OPTIONS = {
    "members": "MEMBER",
    **GAME_OPTIONS,
    **{name: f"--{name}" for name in ("games", "budget", "players", "template", "temperature", "out")},
    "nash_conv": "--nash-conv",
}


def tournament(
    members: Annotated[list[str], typer.Argument(metavar="MEMBER MEMBER ...", help=_MEMBER_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=_ENV_HELP)] = None,
    games: Annotated[int | None, typer.Option(min=4, help=_GAMES_HELP)] = None,
    budget: Annotated[int | None, typer.Option(min=4, help=_BUDGET_HELP)] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help=_OUT_HELP)] = Path("tournament"),
    players: Annotated[
        int | None, typer.Option(min=2, help="Number of seats; by default two where that is possible.")
    ] = None,
    template: Annotated[str | None, TEMPLATE] = None,
    seed: Annotated[int, SEED] = 0,
    temperature: Annotated[float, TEMPERATURE] = 1.0,
    nash_conv: Annotated[bool, typer.Option("--nash-conv", help=_NASH_CONV_HELP)] = False,
) -> None:
    """Let all members play each other, rank them, and write the payoffs and a page into a directory."""
    from sparring.cli.console_progress import ConsoleProgress
    from sparring.commands.tournament import tournament as hold_tournament
    from sparring.commands.tournament_tables import print_tournament
    from sparring.evaluation.tournament_files import PAGE
    from sparring.run.checks import renaming

    with renaming(_OPTIONS):
        result = hold_tournament(
            members,
            env or first_environment(members[0]),
            out,
            games=games,
            budget=budget,
            players=players,
            template=template,
            seed=seed,
            temperature=temperature,
            nash_conv=nash_conv,
            progress=ConsoleProgress(Console()),
        )
    print_tournament(result.rankings, result.failures, console_of_tables())
    print(f"\npage: {out / PAGE}")
