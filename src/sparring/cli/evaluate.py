"""``sparring eval``, ``play`` and ``tournament``: what is trained plays, against others or a person."""

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sparring.cli.options import (
    GAME_OPTIONS,
    TEMPLATE_OPTIONS,
    Env,
    Player,
    Players,
    Seed,
    SeedOrNone,
    Temperature,
    Template,
    TemplateOptions,
    check_writable,
    console_of_tables,
    json_text,
    print_table,
    write_text,
)
from sparring.cli.serve import PACKAGES
from sparring.core import InputError
from sparring.core.env_id import class_name
from sparring.core.errors import check_installed, refuse, renaming
from sparring.core.play import FEWEST_GAMES

_ROLE_HELP = "For a program: who plays a role, such as Solver=RUN@40, =base or an adapter; may be repeated."
_OPPONENT_HELP = (
    "random (the default), another script, base (the default where moves are not listed) or a run; how it "
    "draws may stand behind it, as in base,top_p=0.9. With @reference, every member of the game's reference "
    "pool, for an anchored rating."
)
_MEMBER_HELP = (
    "A run (RUN, RUN@120, RUN@best, or RUN@all for every checkpoint that it keeps), an adapter, base, "
    "a script such as random or optimal, @reference for the game's reference pool, a mixture (see: sparring "
    "psro), or a model behind an API (vendor/model, "
    "model@http://host/v1); how it draws may stand behind it, as in base,temperature=0.6,top_p=0.9 or "
    "base,sampling=model."
)
_GAMES_HELP = (
    "Games of each pair or group, the same number in each order of seats; with --budget the first ones. By "
    "default 200, or 20."
)
_BUDGET_HELP = "Games in total. After the first games, the rest go to the pairs whose order is still open."
_MAX_STATES_HELP = (
    "NashConv of phantom_ttt: stop after about this number of information states. The same command goes on."
)
_TASK_HELP = (
    "Ask the questions of a task instead: arithmetic, gsm8k, math500, reasoning_gym:NAME or a .jsonl file; "
    "may be repeated."
)
_TEMPERATURE_HELP = "0 takes the most likely token; by default 1, and for tasks as in the run."
_NASH_CONV_HELP = "Also compute NashConv of every model that is served here (small OpenSpiel games)."


def evaluate(
    model: Player,
    env: Env = None,
    task: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_TASK_HELP)] = None,
    questions: Annotated[
        int | None, typer.Option(min=2, help="Questions of each task; by default as in the run, or 200.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(metavar="ROLE=PLAYER", help=_ROLE_HELP)] = None,
    opponent: Annotated[str | None, typer.Option(metavar="SPEC", help=_OPPONENT_HELP)] = None,
    games: Annotated[
        int | None, typer.Option(min=2, help="Number of games, with balanced seats; by default 400.")
    ] = None,
    template: Template = None,
    template_options: TemplateOptions = None,
    players: Players = None,
    seed: SeedOrNone = None,
    temperature: Annotated[float | None, typer.Option(min=0, help=_TEMPERATURE_HELP)] = None,
    nash_conv: Annotated[
        bool, typer.Option("--nash-conv", help="Compute NashConv exactly too; for OpenSpiel games.")
    ] = False,
    max_states: Annotated[int | None, typer.Option(min=1, metavar="N", help=_MAX_STATES_HELP)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON; all else goes to stderr.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to this file too, as JSON.")
    ] = None,
) -> None:
    """Play a match and print wins, draws, losses and invalid moves with their 95% intervals.

    In a game that minimax solves, also the share of the model's moves that keep the value of the position.
    A program's run is measured as its training does. With --task, print how many answers are right.
    """
    from sparring.commands.member_sampling import split_sampling
    from sparring.commands.model_source import first_environment
    from sparring.commands.venues import refuse_for_programs

    if out is not None:
        check_writable("--out", out)
    of_games = {"--opponent": opponent, "--games": games, "--template": template, "--players": players}
    of_games |= {"--nash-conv": nash_conv, "--max-states": max_states}
    if task:
        others = {"--env": env, "--role": role or None, **of_games}
        refuse(others, "is not for tasks", "Leave it out, or leave out --task")
    elif questions is not None:
        raise InputError("--questions", "is for tasks, and none is named", "Name one with --task")
    else:
        env = env or first_environment(model)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        if task:
            values = _asked(model, task, questions, seed, temperature, template_options)
        elif env is None:
            of_games |= {
                "--template-options": template_options,
                "--temperature": temperature is not None,
                "sampling": split_sampling(model)[1] or None,
            }
            refuse_for_programs(of_games)
            values = _measured(model, role or [], seed)
        else:
            _check_no_role(bool(role), env)
            options: dict[str, Any] = {"template": template, "num_players": players, "seed": seed or 0}
            options |= {"temperature": 1.0 if temperature is None else temperature}
            of_matches: dict[str, Any] = {"nash_conv": nash_conv, "max_states": max_states}
            of_matches |= {"template_options": template_options}
            if opponent in ("@reference", "@own-reference"):
                values = _rated(model, env, games, options | {"pool_name": opponent}, of_matches)
            else:
                values = _played(model, env, opponent, games, options | of_matches)
    text = json_text(values)
    if out is not None:
        write_text(out, text)
    if as_json:
        print(text, end="")


def _asked(
    model: str,
    tasks: list[str],
    questions: int | None,
    seed: int | None,
    temperature: float | None,
    template_options: str | None,
) -> dict[str, Any]:
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.evaluate_tasks import evaluate_tasks
    from sparring.commands.tables import results_table

    console = Console()
    progress = ConsoleProgress(console)
    options: dict[str, Any] = {"seed": seed, "temperature": temperature, "template_options": template_options}
    with renaming(TEMPLATE_OPTIONS):
        results = evaluate_tasks(model, tasks, questions, **options, progress=progress)
    print_table(console, results_table(results))
    return {"kind": "tasks", "model": model, "tasks": [result.to_dict() for result in results]}


def _measured(run: str, roles: list[str], seed: int | None) -> dict[str, Any]:
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.programs import evaluate_program
    from sparring.commands.tables import results_table

    players = dict(map(_role_and_player, roles))
    console = Console()
    measures = evaluate_program(run, players, seed, ConsoleProgress(console))
    print_table(console, results_table([*measures.values()]))
    found = {name: measure.to_dict() for name, measure in measures.items()}
    return {"kind": "measures", "run": run, "roles": players, "measures": found}


def _role_and_player(given: str) -> tuple[str, str]:
    role, equals, player = given.partition("=")
    if not (role and equals and player):
        raise InputError("--role", f"{given!r} names no player", "Write ROLE=RUN@40 or ROLE=base")
    return role, player


def _check_no_role(given: bool, env: str) -> None:
    if given:
        raise InputError("--role", f"is for programs, but {env} is a game", "Leave it out")


def _played(
    model: str, env: str, opponent: str | None, games: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.evaluate import GAMES
    from sparring.commands.evaluate import evaluate as play
    from sparring.commands.tables import results_table

    console = Console()
    renamed = {"opponent": "--opponent", "nash_conv": "--nash-conv", "max_states": "--max-states"}
    with renaming(GAME_OPTIONS | TEMPLATE_OPTIONS | renamed):
        played = play(model, env, opponent, games or GAMES, **options, progress=ConsoleProgress(console))
    results = [
        replace(one, env_id=class_name(env)) for one in (played.result, played.exact) if one is not None
    ]
    print_table(console, results_table(results, played.kept))
    return played.to_dict()


def _rated(
    model: str, env: str, games: int | None, options: dict[str, Any], of_matches: dict[str, Any]
) -> dict[str, Any]:
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.reference import rate_by_pool, rating_table

    options_of_matches = {f"--{name.replace('_', '-')}": value for name, value in of_matches.items()}
    refuse(options_of_matches, "is not for @reference", "Leave it out, or name one opponent")
    console = Console()
    with renaming(GAME_OPTIONS | {"members": "MODEL_OR_RUN"}):
        found = rate_by_pool(model, env, games, **options, progress=ConsoleProgress(console))
    print_table(console, rating_table(found))
    return found.to_dict()


def play(
    run: Player,
    env: Env = None,
    role: Annotated[str | None, typer.Option(help="For a program: the role that you play.")] = None,
    template: Template = None,
    seat: Annotated[int | None, typer.Option(min=0, help="Your seat; drawn if not given.")] = None,
    seed: Seed = 0,
    browser: Annotated[
        bool, typer.Option("--browser", help="Play on a page that this machine serves.")
    ] = False,
) -> None:
    """Play against a trained model in the terminal or a browser, or take a role in a program."""
    from sparring.commands.model_source import first_environment

    env = env or first_environment(run)
    if env is None and role is None:
        raise InputError("--role", "is missing: the run plays a program", "Name the role that you play")
    if env is not None:
        _check_no_role(role is not None, env)
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.persons_games import PersonsGames
    from sparring.commands.play import play_games
    from sparring.commands.programs import play_program
    from sparring.commands.venues import refuse_for_programs

    if browser:
        check_installed("--browser", "serve", *PACKAGES)
        from sparring.commands.play_browser import games_in_browser, program_in_browser
    console = Console()
    progress = ConsoleProgress(console)
    if env is None:
        refuse_for_programs({"--template": template, "--seat": seat is not None})
        if browser:
            program_in_browser(run, str(role), seed, progress, progress.say)
        else:
            play_program(run, str(role), seed, console, progress)
        return
    with renaming(GAME_OPTIONS | {"seat": "--seat"}):
        games = PersonsGames(run, env, template=template, seat=seat, seed=seed, progress=progress)
        if browser:
            games_in_browser(games, progress.say)
        else:
            play_games(games, console)


def tournament(
    members: Annotated[list[str], typer.Argument(metavar="MEMBER MEMBER ...", help=_MEMBER_HELP)],
    env: Env = None,
    games: Annotated[int | None, typer.Option(min=FEWEST_GAMES, help=_GAMES_HELP)] = None,
    budget: Annotated[int | None, typer.Option(min=FEWEST_GAMES, help=_BUDGET_HELP)] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Its directory. If it holds an unfinished tournament, that goes on."
        ),
    ] = Path("tournament"),
    players: Players = None,
    template: Template = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    nash_conv: Annotated[bool, typer.Option("--nash-conv", help=_NASH_CONV_HELP)] = False,
) -> None:
    """Let all members play each other, rank them, and write the payoffs and a page into a directory."""
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.model_source import first_environment_of
    from sparring.commands.tournament import tournament as hold_tournament
    from sparring.commands.tournament_page import print_tournament
    from sparring.evaluation.tournament_files import PAGE

    names = ("games", "budget", "players", "template", "temperature", "out")
    renamed = {"members": "MEMBER", "nash_conv": "--nash-conv", **{name: f"--{name}" for name in names}}
    with renaming(GAME_OPTIONS | renamed):
        result = hold_tournament(
            members,
            env or first_environment_of(members),
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
