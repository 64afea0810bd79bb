"""``sparring exploit`` and ``psro``: best responses to a policy, and to mixtures of best responses."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparring.cli.options import (
    GAME_OPTIONS,
    PLAYER_HELP,
    Address,
    ConfigWords,
    Env,
    Exit,
    Players,
    Recipe,
    RuntimeName,
    Seed,
    SeedOrNone,
    Template,
    config_of,
    console_of_tables,
    print_table,
)
from sparring.core.errors import renaming
from sparring.core.text import shell_command

if TYPE_CHECKING:
    from sparring.config import Config


AGENT = typer.Argument(
    metavar="AGENT",
    help=(
        f"{PLAYER_HELP[:-1]}; base; a script such as random; a policy's .jsonl file; a model behind an API: "
        "vendor/model, or model@http://host/v1."
    ),
)
ProgramFile = Annotated[
    str | None,
    typer.Option("--program", metavar="CONFIG", help="Play this configuration's program, not a game."),
]
Role = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The program's role that the agent holds; others learn against it."),
]
Updates = Annotated[int, typer.Option(min=1, help="Updates of the best response, at most.")]
GamesPerStep = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Games of each update; by default 1024, 64 if a model learns from an API. Not for a program.",
    ),
]
Games = Annotated[int, typer.Option(min=2, help="Games that measure it, with balanced seats.")]
Start = Annotated[
    str,
    typer.Option(
        metavar="run|base|MODEL", help="What the best response begins with: the agent, its base, or a model."
    ),
]
Calls = Annotated[
    int, typer.Option(min=2, help="Calls to models behind an API, at most; earlier ones count.")
]
OF_GAMES = {
    **GAME_OPTIONS,
    **{"template": "--template", "num_players": "--players", "games_per_step": "--games-per-step"},
    **{
        "MODEL_OR_RUN": "AGENT",
        "start": "--start",
        "program": "--program",
        "role": "--role",
        "calls": "--calls",
        "collection.api_calls": "--calls",
    },
}
"""How errors name the options."""


def exploit(
    agent: Annotated[str, AGENT],
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
        Path | None, typer.Option(metavar="DIR", help="The best response's run; by default in runs.")
    ] = None,
) -> None:
    """Train a best response against a frozen policy: its expected gain is a lower bound of exploitability.

    If the command was stopped or killed, give it again: it continues.
    """
    config, env = program_and_game(agent, env, program)
    from sparring.commands.answered import AgentQuery
    from sparring.commands.best_response import train_to_the_end
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.exploit import RESULT, Budget, directory_for
    from sparring.commands.exploit import exploit as train_best_response
    from sparring.commands.tables import exploited_table
    from sparring.run.progress_views import print_line

    console, directory = Console(), out or directory_for(agent, env or program, role)
    with renaming(OF_GAMES | {"directory": "--out"}), going_on(console):
        found = train_best_response(
            AgentQuery(agent, env, config, role, start, template, players),
            directory,
            Budget(updates, games_per_step, games, seed, calls),
            train=partial(train_to_the_end, console=console),
            progress=ConsoleProgress(console),
        )
    if found is None:
        raise typer.Exit(Exit.INTERRUPTED)
    print_table(console, exploited_table(found))
    print_line(console, f"result: {directory / RESULT}")


@contextmanager
def going_on(console: Console) -> Iterator[None]:
    """Say how to go on if the body is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("interrupted: give this command again, which goes on from what is kept", soft_wrap=True)
        raise


def program_and_game(agent: str, env: str | None, program: str | None) -> tuple["Config | None", str | None]:
    """Return the configuration of the program that is named, or the game that is meant; neither for the
    program of a run."""
    if program is None:
        from sparring.commands.model_source import first_environment

        return None, env or first_environment(agent)
    from sparring.run.configuration import load_fitted

    return load_fitted(program, {}, None)[0], env


def psro(
    arguments: ConfigWords = None,
    seed: SeedOrNone = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the directory; by default psro- and the configuration's.")
    ] = None,
    recipe: Recipe = None,
    runtime: RuntimeName = None,
    address: Address = None,
) -> None:
    """Train best responses to mixtures of best responses; the last mixture is a model.

    If the command was stopped or killed, give it again: it continues.
    """
    from sparring.commands.best_response import train_to_the_end
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.psro import check_psro
    from sparring.commands.psro import psro as run_psro
    from sparring.commands.psro_files import PAYOFFS
    from sparring.commands.psro_page import psro_table
    from sparring.core.adapters import MIXTURE_FILE
    from sparring.evaluation.psro import member_name
    from sparring.evaluation.tournament_files import PAGE
    from sparring.run.checks import check_config
    from sparring.run.configuration import load_fitted
    from sparring.run.progress_views import print_line
    from sparring.run.run_layout import PSRO_FILE, PSRO_PAGE
    from sparring.run.run_names import check_plain_name

    source, overrides = config_of(arguments, "psro kuhn", seed=seed, runtime=runtime, address=address)
    config, left_out = load_fitted(source, overrides, recipe)
    check_psro(config)
    stems = (Path(one).stem for one in (source, recipe) if one is not None)
    if name is not None:
        check_plain_name(name)
    path = Path(config.run.directory) / (name or "-".join(["psro", *stems]))
    if not (path / PSRO_FILE).exists():
        check_config(config)
    console, tables = Console(), console_of_tables()
    for line in left_out:
        print_line(console, f"note: {line}")
    with renaming({"directory": "--name"}), going_on(console):
        found = run_psro(
            config,
            path,
            train=partial(train_to_the_end, console=console),
            progress=ConsoleProgress(console),
            on_state=lambda state: print_table(tables, psro_table(state)),
        )
    if found is None:
        raise typer.Exit(Exit.INTERRUPTED)
    print_line(console, f"mixture: {path / MIXTURE_FILE}")
    print_line(console, f"page: {path / PSRO_PAGE}")
    print_line(console, f"payoffs: {path / PAYOFFS / PAGE}")
    words = (
        (("tournament", path / member_name(1), path),) if config.program else (("eval", path), ("play", path))
    )
    print_line(console, f"next: {'   or: '.join(shell_command(*one) for one in words)}")
