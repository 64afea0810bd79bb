"""``sparring eval``: matches of a model or run, or a program's own measures."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sparring.cli.files import check_writable, json_text, write_text
from sparring.cli.model_options import (
    ENV_HELP,
    GAME_OPTIONS,
    PLAYER_HELP,
    SEED,
    TEMPERATURE,
    TEMPLATE,
    check_no_role,
    first_environment,
)
from sparring.core import InputError

_ROLE_HELP = "For a program: who plays a role, such as Solver=RUN@40 or Solver=base; may be repeated."
_OPPONENT_HELP = "random (the default), optimal, base (the default where moves are not listed) or a run."


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help=PLAYER_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=ENV_HELP)] = None,
    role: Annotated[list[str] | None, typer.Option(metavar="ROLE=PLAYER", help=_ROLE_HELP)] = None,
    opponent: Annotated[str | None, typer.Option(metavar="SPEC", help=_OPPONENT_HELP)] = None,
    games: Annotated[int, typer.Option(min=2, help="Number of games, with balanced seats.")] = 400,
    template: Annotated[str | None, TEMPLATE] = None,
    players: Annotated[int | None, typer.Option(min=1, help="Number of seats; two if possible.")] = None,
    seed: Annotated[int | None, SEED] = None,
    temperature: Annotated[float, TEMPERATURE] = 1.0,
    nash_conv: Annotated[
        bool, typer.Option("--nash-conv", help="Compute NashConv exactly too; for OpenSpiel games.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON; all else goes to stderr.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to this file too, as JSON.")
    ] = None,
) -> None:
    """Play a match and print wins, draws, losses and invalid moves with their 95% intervals.

    In a game that minimax solves, also the share of the model's moves that keep the value of the position.
    A program's run is measured as its training does.
    """
    if out is not None:
        check_writable("--out", out)
    env = env or first_environment(model)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        if env is None:
            values = _measured(model, role or [], seed)
        else:
            check_no_role(bool(role), env)
            options: dict[str, Any] = {"template": template, "num_players": players, "seed": seed or 0}
            options |= {"temperature": temperature, "nash_conv": nash_conv}
            values = _played(model, env, opponent, games, options)
    text = json_text(values)
    if out is not None:
        write_text(out, text)
    if as_json:
        print(text, end="")


def _measured(run: str, roles: list[str], seed: int | None) -> dict[str, Any]:
    from sparring.cli.console_progress import ConsoleProgress
    from sparring.commands.programs import evaluate_program
    from sparring.evaluation.tables import measures_table

    players = dict(_role_and_player(one) for one in roles)
    console = Console()
    measures = evaluate_program(run, players, seed, ConsoleProgress(console))
    console.print(measures_table(measures))
    found = {name: measure.to_dict() for name, measure in measures.items()}
    return {"kind": "measures", "run": run, "roles": players, "measures": found}


def _role_and_player(given: str) -> tuple[str, str]:
    role, equals, player = given.partition("=")
    if not (role and equals and player):
        raise InputError("--role", f"{given!r} names no player", "Write ROLE=RUN@40 or ROLE=base")
    return role, player


def _played(
    model: str, env: str, opponent: str | None, games: int, options: dict[str, Any]
) -> dict[str, Any]:
    from sparring.cli.console_progress import ConsoleProgress
    from sparring.commands.evaluate import evaluate as play
    from sparring.evaluation.tables import exact_table, match_table
    from sparring.run.checks import renaming

    console = Console()
    with renaming(GAME_OPTIONS | {"opponent": "--opponent", "nash_conv": "--nash-conv"}):
        played = play(model, env, opponent, games, **options, progress=ConsoleProgress(console))
    console.print(match_table([played.result], played.kept))
    if played.exact is not None:
        console.print(exact_table(played.exact))
    return played.to_dict()
