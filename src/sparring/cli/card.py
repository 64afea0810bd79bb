"""``sparring card``: what a trained best response gains over any agent, and how far that can be trusted."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.best_responses import (
    AGENT,
    OF_GAMES,
    Calls,
    Games,
    GamesPerStep,
    ProgramFile,
    Role,
    Start,
    Updates,
    going_on,
    program_and_game,
)
from sparring.cli.options import Env, Exit, Players, Seed, Template, json_text, print_table
from sparring.core import InputError
from sparring.core.errors import renaming


def card(
    agent: Annotated[str | None, AGENT] = None,
    env: Env = None,
    program: ProgramFile = None,
    role: Role = None,
    updates: Updates = 40,
    games_per_step: GamesPerStep = None,
    games: Games = 4000,
    start: Start = "run",
    template: Template = None,
    players: Players = None,
    calls: Calls = 2000,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The card and the best response; by default in runs.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make the table of calibration there instead, or go on with it."),
    ] = None,
) -> None:
    """Write a page on how exploitable an agent is: what a trained best response gains, and how sure that is.

    If the command was stopped or killed, give it again: it continues, and pays for no answer twice.
    """
    from sparring.commands.best_response import train_to_the_end
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.exploit import Budget, directory_for
    from sparring.run.progress_views import print_line

    budget = Budget(updates, games_per_step, games, seed, calls)
    console = Console(stderr=json)
    train, progress = partial(train_to_the_end, console=console), ConsoleProgress(console)
    if calibrate is not None:
        given = {"AGENT": agent, "--env": env, "--program": program, "--role": role, "--out": out}
        for option, value in given.items():
            if value is not None:
                problem = f"is {value}, but --calibrate has agents and games of its own"
                raise InputError(option, problem, "Leave one out")
        from sparring.commands.calibrate import make_table

        with renaming({"directory": "--calibrate"}), going_on(console):
            print_line(console, f"table: {make_table(calibrate, budget, train, progress)}")
        return
    if agent is None:
        raise InputError("AGENT", "is missing", "Try: sparring card random --env kuhn_poker")
    config, env = program_and_game(agent, env, program)
    from sparring.commands.answered import AgentQuery
    from sparring.commands.card import PAGE, make_card
    from sparring.commands.card_page import card_tables

    directory = out or directory_for(agent, env or program, role, "card")
    with renaming(OF_GAMES | {"directory": "--out"}), going_on(console):
        query = AgentQuery(agent, env, config, role, start, template, players)
        found = make_card(query, directory, budget, train=train, progress=progress)
    if found is None:
        raise typer.Exit(Exit.INTERRUPTED)
    if json:
        print(json_text(found.to_dict()), end="")
        return
    for table in card_tables(found):
        print_table(console, table)
    print_line(console, f"page: {directory / PAGE}")
