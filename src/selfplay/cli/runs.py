"""``selfplay eval``, ``play`` and ``report``: what is done with a run or a model that is there."""

from typing import Annotated

import typer
from rich.console import Console

from selfplay.core import InputError

_TEMPLATE_HELP = "How positions become prompts; as the run trained, by default."
_ENV_HELP = "What is played; see: selfplay envs"


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A run's name or path, or a model.")],
    env: Annotated[str, typer.Option(metavar="ID", help=_ENV_HELP)],
    opponent: Annotated[str, typer.Option(metavar="SPEC", help="random, optimal, base or a run.")] = "random",
    games: Annotated[int, typer.Option(min=2, help="Games, seats balanced.")] = 400,
    template: Annotated[str | None, typer.Option(help=_TEMPLATE_HELP)] = None,
    players: Annotated[int | None, typer.Option(min=1, help="Seats; two where that can be.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 1.0,
) -> None:
    """Play a match and print wins, draws, losses and invalid moves with their 95% intervals."""
    from selfplay.runtime.checks import OPPONENTS, check_opponent, renaming
    from selfplay.runtime.run_names import is_run_or_adapter

    seats = checked_seats(env, players, template)
    if seats > 1 and opponent not in OPPONENTS and not is_run_or_adapter(opponent):
        fix = f"Use {', '.join(OPPONENTS)} or a run"
        raise InputError("--opponent", f"there is no opponent and no run {opponent!r}", fix)
    if seats > 1 and opponent in OPPONENTS:
        with renaming({"opponent": "--opponent", "env.id": "--opponent"}):
            check_opponent(opponent, env)
    from selfplay.runtime.evaluate import evaluate as evaluate_model

    evaluate_model(
        model,
        env,
        opponent,
        games,
        template=template,
        num_players=players,
        seed=seed,
        temperature=temperature,
        console=Console(),
    )


def play(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")],
    env: Annotated[str, typer.Option(metavar="ID", help=_ENV_HELP)],
    template: Annotated[str | None, typer.Option(help=_TEMPLATE_HELP)] = None,
    seat: Annotated[int | None, typer.Option(min=0, help="Yours; drawn if not given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
) -> None:
    """Play against a trained model in the terminal."""
    checked_seats(env, None, template)
    from selfplay.runtime.play import play as play_game

    play_game(run, env, template=template, seat=seat, seed=seed, console=Console())


def report(run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]) -> None:
    """Rebuild a run's report.html and print where it is."""
    from selfplay.runtime.run_names import find_run

    run_dir = find_run(run)
    from selfplay.runtime.report import rebuild

    print(rebuild(run_dir))


def checked_seats(env: str, players: int | None, template: str | None) -> int:
    """Check what is to be played before a model is loaded for it; return the number of seats.

    Raises:
        InputError: the environment, its number of players or the template is not possible.
    """
    from selfplay.runtime.checks import check_environment, default_seats, renaming

    names = {"env.id": "--env", "env.num_players": "--players", "env.template": "--template"}
    with renaming(names):
        seats = players or default_seats(env)
        check_environment(env, seats, template or "default")
    return seats
