"""``selfplay eval``, ``play`` and ``report``: commands for an existing run or model."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from selfplay.cli.files import check_writable, json_text, write_text
from selfplay.core import InputError
from selfplay.core.adapters import BASE
from selfplay.core.own_classes import absolute

if TYPE_CHECKING:
    from selfplay.commands.evaluate import Evaluated

_TEMPLATE_HELP = "How positions become prompts; by default the run's own."
MODEL_HELP = "A run's name or path, a run's checkpoint such as RUN@120 or RUN@best, an adapter, or a model."
_RUN_HELP = "A run's name or path; RUN@120 or RUN@best for one of its checkpoints."
_ENV_HELP = "The environment to play (see: selfplay envs); by default the run's first."
_ROLE_HELP = "For a program: who plays a role, such as Solver=RUN@40 or Solver=base; may be repeated."
_OPPONENT_HELP = "random (the default), optimal, base (the default where moves are not listed) or a run."


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help=MODEL_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=_ENV_HELP)] = None,
    role: Annotated[list[str] | None, typer.Option(metavar="ROLE=PLAYER", help=_ROLE_HELP)] = None,
    opponent: Annotated[str | None, typer.Option(metavar="SPEC", help=_OPPONENT_HELP)] = None,
    games: Annotated[int, typer.Option(min=2, help="Number of games, with balanced seats.")] = 400,
    template: Annotated[str | None, typer.Option(help=_TEMPLATE_HELP)] = None,
    players: Annotated[int | None, typer.Option(min=1, help="Number of seats; two if possible.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Root of all randomness.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON; all else goes to stderr.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to this file too, as JSON.")
    ] = None,
) -> None:
    """Play a match and print wins, draws, losses and invalid moves with their 95% intervals.

    A program's run is measured as its training does.
    """
    if out is not None:
        check_writable("--out", out)
    env = env or _first_env(model)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        if env is None:
            values = _measured(model, role or [], seed)
        else:
            values = _played(model, env, opponent, games, template, players, seed or 0, temperature).to_dict()
    text = json_text(values)
    if out is not None:
        write_text(out, text)
    if as_json:
        print(text, end="")


def _first_env(run: str) -> str | None:
    """Return the first environment of a run; ``None`` if it plays a program.

    Raises:
        InputError: it is no run.
    """
    from selfplay.config.loading import load_config
    from selfplay.training.run_names import find_run, split_checkpoint

    try:
        directory = find_run(split_checkpoint(run)[0])
    except InputError as error:
        raise InputError("--env", f"is missing, and {run} is not a run", "Name an environment") from error
    config = load_config(str(directory / "config.toml"), {})
    return config.envs[0].id if config.envs else None


def _measured(run: str, roles: list[str], seed: int | None) -> dict[str, Any]:
    from selfplay.training.progress_views import working

    players = dict(_role_and_player(one) for one in roles)
    console = Console()
    with working(console, "importing torch"):
        from selfplay.commands.programs import evaluate_program

    measures = evaluate_program(run, players, seed, console)
    found = {name: measure.to_dict() for name, measure in measures.items()}
    return {"kind": "measures", "run": run, "roles": players, "measures": found}


def _role_and_player(given: str) -> tuple[str, str]:
    role, equals, player = given.partition("=")
    if not (role and equals and player):
        raise InputError("--role", f"{given!r} names no player", "Write ROLE=RUN@40 or ROLE=base")
    return role, player


def _played(
    model: str,
    env: str,
    opponent: str | None,
    games: int,
    template: str | None,
    players: int | None,
    seed: int,
    temperature: float,
) -> "Evaluated":
    from selfplay.commands.model_source import find_model
    from selfplay.training.checks import check_opponent, renaming
    from selfplay.training.evaluation_opponents import OPPONENTS, default_opponent, why_base
    from selfplay.training.progress_views import print_line, working
    from selfplay.training.run_names import is_run_or_adapter

    console, env = Console(), absolute(env, Path())
    seats = checked_seats(env, players, template)
    if opponent is None:
        opponent = default_opponent(env)
        if opponent == BASE and seats > 1:
            print_line(console, f"note: {why_base(env)}")
    if seats > 1 and opponent not in OPPONENTS and not is_run_or_adapter(opponent):
        fix = f"Use {', '.join(OPPONENTS)} or a run"
        raise InputError("--opponent", f"{opponent!r} is neither an opponent nor a run", fix)
    if seats > 1 and opponent in OPPONENTS:
        with renaming({"opponent": "--opponent", "env.id": "--opponent"}):
            check_opponent(opponent, env)
    find_model(model)
    with working(console, "importing torch"):
        from selfplay.commands.evaluate import evaluate as evaluate_model

    return evaluate_model(
        model,
        env,
        opponent,
        games,
        template=template,
        num_players=players,
        seed=seed,
        temperature=temperature,
        console=console,
    )


def play(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=_ENV_HELP)] = None,
    role: Annotated[str | None, typer.Option(help="For a program: the role that you play.")] = None,
    template: Annotated[str | None, typer.Option(help=_TEMPLATE_HELP)] = None,
    seat: Annotated[int | None, typer.Option(min=0, help="Your seat; drawn if not given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
) -> None:
    """Play against a trained model in the terminal, or take a role in a program."""
    env = env or _first_env(run)
    if env is None:
        _play_role(run, role, seed)
        return
    env = absolute(env, Path())
    checked_seats(env, None, template)
    from selfplay.commands.model_source import find_model
    from selfplay.training.progress_views import working

    find_model(run)
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


def report(run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]) -> None:
    """Rebuild a run's report.html and print its path."""
    from selfplay.training.run_names import find_run

    run_dir = find_run(run)
    from selfplay.training.report import rebuild

    print(rebuild(run_dir))


def checked_seats(env: str, players: int | None, template: str | None) -> int:
    """Check the environment before a model is loaded; return the number of seats.

    Raises:
        InputError: the environment, its number of players or the template is impossible.
    """
    from selfplay.training.checks import check_environment, default_seats, renaming

    names = {"env.id": "--env", "env.num_players": "--players", "env.template": "--template"}
    with renaming(names):
        seats = players or default_seats(env)
        check_environment(env, seats, template or "default")
    return seats
