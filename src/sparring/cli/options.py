"""What commands share: how they end, options, fields of the configuration on the command line, and what they
write."""

import json
import os
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sparring.core import InputError

if TYPE_CHECKING:
    from sparring.view.tables import Table


class Exit(IntEnum):
    """How every command ends."""

    DONE = 0
    FAILED = 1
    """It could not finish; its line says why, and whether anything is kept."""
    BAD_INPUT = 2
    FOUND = 3
    """Only of ``doctor``: something stands out in the run."""
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """Whoever read the output, such as ``head``, has closed it."""


WIDTH_OF_FILES = 160
"""Columns of tables where standard output is not a terminal."""
SEED_OPTION = typer.Option(min=0, help="Root of all randomness.")
MODEL_HELP = "A run's name or path, a run's checkpoint such as RUN@120 or RUN@best, an adapter, or a model."
PLAYER_HELP = f"{MODEL_HELP[:-1]}; or a mixture (see: sparring psro)."
ConfigWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG --a.b=VALUE",
        help=(
            "A .toml file or a preset (kuhn, kuhn-long, quickstart, league, tictactoe, tictactoe-long, "
            "proposer-solver, debate, nip, debate-proof, papers/NAME); fields follow as --learning.steps 20."
        ),
        show_default=False,
    ),
]
Seed = Annotated[int, SEED_OPTION]
SeedOrNone = Annotated[int | None, SEED_OPTION]
Env = Annotated[
    str | None,
    typer.Option(metavar="ID", help="What is played (see: sparring envs); by default what the run trained."),
]
Player = Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help=PLAYER_HELP)]
Players = Annotated[int | None, typer.Option(min=1, help="Number of seats; by default two where possible.")]
Template = Annotated[
    str | None, typer.Option(help="How positions become prompts; by default as the run trained.")
]
TemplateOptions = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE",
        help="Those of the chat template, as '{enable_thinking = false}'; by default as the run trained.",
    ),
]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")]
RuntimeName = Annotated[str | None, typer.Option(help="local (one process) or ray (a cluster).")]
Address = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster; by default one is started on this machine.")
]
GAME_OPTIONS = {"env.id": "--env", "env.num_players": "--players", "env.template": "--template"}
"""The options that say how a game is played, by the fields of the game's settings."""
_MEANT = {
    "algorithm": "learning.algorithm.type",
    "credit": "credit.type",
    "env": "envs.0.id",
    "envs": "envs.0.id",
    "lr": "learning.learning_rate",
    "model": "model.name",
    "program": "program.type",
}
"""The fields that options mean which have the name of no field, or of a section."""


def split_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Separate plain words from fields: ``--a.b value`` and ``--a.b=value``."""
    words: list[str] = []
    overrides: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-"):
            words.append(argument)
            continue
        option, equals, value = argument.partition("=")
        if not option.startswith("--") or "." not in option:
            raise InputError(option, "there is no such option", _meant(option))
        if not equals:
            value = next(remaining, "--")
        if value.startswith("--"):
            raise InputError(option, "has no value", f"Give one: {option} VALUE")
        overrides[option.removeprefix("--")] = value
    return words, overrides


def _meant(option: str) -> str:
    """Suggest the field that an option without a dot may mean."""
    from sparring.config.problems import namesakes

    name = option.lstrip("-").replace("-", "_")
    meant = [_MEANT[name]] if name in _MEANT else namesakes(name)
    if len(meant) != 1:
        return "See the --help of the command"
    if meant == [name]:
        return f"It is a section: name a field of it, --{name}.FIELD"
    return f"Did you mean --{meant[0]}?"


Recipe = Annotated[
    str | None, typer.Option(help="A published algorithm, such as grpo, or a .toml file of your own.")
]


def config_of(
    arguments: list[str] | None,
    command: str,
    *,
    seed: int | None = None,
    runtime: str | None = None,
    address: str | None = None,
) -> tuple[str, dict[str, str]]:
    """Return the configuration that a command names, and its fields, those of short options included."""
    words, overrides = split_arguments(arguments or [])
    if not words:
        raise InputError("CONFIG", "is missing", f"Try: sparring {command}")
    if len(words) > 1:
        raise InputError(words[1], "one configuration is enough", "Fields are set like --learning.steps 20")
    short = {"run.runtime": ("--runtime", runtime), "ray.address": ("--address", address)}
    for field, (option, value) in short.items():
        if value is not None and field in overrides:
            raise InputError(option, f"is --{field}, which is given too", "Leave one of the two out")
    given = {"seed": seed, "run.runtime": runtime, "ray.address": address}
    return words[0], overrides | {field: str(one) for field, one in given.items() if one is not None}


TEMPLATE_OPTIONS = {"model.template_options": "--template-options"}
"""How errors name the option."""


def console_of_tables() -> Console:
    """Return a console that is wide where standard output is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def print_table(console: Console, table: "Table") -> None:
    """Print a table; what draws it is imported only now."""
    from sparring.view.watch.text import table_text

    console.print(table_text(table))


def check_writable(option: str, file: Path) -> None:
    """Check before long work that a file can be written; an existing one will be replaced."""
    if file.is_dir():
        raise InputError(option, f"{file} is a directory", "Name a file")
    if not file.parent.is_dir():
        raise InputError(option, f"there is no directory {file.parent}", "Name a file in one that exists")
    if not os.access(file.parent, os.W_OK):
        raise InputError(option, f"{file.parent} is not writable", "Name a file in another directory")


def write_text(file: Path, text: str) -> None:
    """Write a file completely or not at all."""
    from sparring.core.files import write_users_file, writing

    with writing(file):
        write_users_file(file, text.encode())


def json_text(values: Any) -> str:
    """Return values as readable JSON in ASCII, which a terminal shows safely."""
    return json.dumps(values, indent=1, allow_nan=False) + "\n"
