"""``selfplay tournament``: everybody against everybody."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selfplay.cli.files import console_of_tables
from selfplay.cli.model_options import TEMPLATE_HELP, checked_seats
from selfplay.core import InputError
from selfplay.core.own_classes import absolute

_MEMBER_HELP = (
    "A run (RUN, RUN@120, RUN@best, or RUN@all for every checkpoint that it keeps), an adapter, base, "
    "random, optimal, a mixture (see: selfplay psro), or a model behind an API (vendor/model, "
    "model@http://host/v1)."
)
_GAMES_HELP = (
    "Games of each pair or group, the same number in each order of seats; with --budget the first ones. By "
    "default 200, or 20."
)
_BUDGET_HELP = "Games in total. After the first games, the rest go to the pairs whose order is still open."
_NASH_CONV_HELP = "Also compute NashConv of every model that is served here (small OpenSpiel games)."
_OUT_HELP = "The tournament's directory. If it holds an unfinished one, that goes on."


def tournament(
    members: Annotated[list[str], typer.Argument(metavar="MEMBER MEMBER ...", help=_MEMBER_HELP)],
    env: Annotated[str, typer.Option(metavar="ID", help="The game to play (see: selfplay envs).")],
    games: Annotated[int | None, typer.Option(min=4, help=_GAMES_HELP)] = None,
    budget: Annotated[int | None, typer.Option(min=4, help=_BUDGET_HELP)] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help=_OUT_HELP)] = Path("tournament"),
    players: Annotated[
        int | None, typer.Option(min=2, help="Number of seats; by default two where that is possible.")
    ] = None,
    template: Annotated[str | None, typer.Option(help=TEMPLATE_HELP)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    nash_conv: Annotated[bool, typer.Option("--nash-conv", help=_NASH_CONV_HELP)] = False,
) -> None:
    """Let all members play each other, rank them, and write the payoffs and a page into a directory."""
    from selfplay.commands.tournament import Tournament, run_tournament
    from selfplay.commands.tournament_files import PAGE
    from selfplay.commands.tournament_members import environment_of, find_members
    from selfplay.commands.tournament_schedule import Schedule
    from selfplay.commands.tournament_tables import print_tournament
    from selfplay.population.meta_strategies import check_installed
    from selfplay.training.checks import check_models_end_answers, check_nash_conv, renaming

    env = absolute(env, Path())
    seats = checked_seats(env, players, template)
    if seats < 2:
        raise InputError("--env", f"{env} has 1 seat", "A tournament needs a game for two or more players")
    check_installed("tournament")
    if nash_conv:
        if temperature != 1:
            raise InputError("--nash-conv", "is that of a temperature of 1", "Leave --temperature out")
        with renaming({"evaluation.nash_conv": "--nash-conv"}):
            check_nash_conv(env)
    found = find_members(members, env)
    settings = environment_of(found, env, template, seats)
    if nash_conv:
        check_models_end_answers(settings, "--nash-conv", "Leave it out")
    games = games or (200 if budget is None else 20)
    schedule = Schedule([one.uid for one in found], games, budget, seed, seats)
    agents = {one.uid: one.agents(settings, temperature) for one in found}
    tournament = Tournament(found, settings, schedule, agents, temperature, seed, nash_conv)
    outcome = run_tournament(tournament, out, budget, Console())
    print_tournament(outcome.rankings, outcome.failures, console_of_tables())
    print(f"\npage: {out / PAGE}")
