"""``sparring envs``, ``reference`` and ``config``: what can be played, compared with and configured."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sparring.cli.options import console_of_tables, json_text, print_table
from sparring.core import InputError
from sparring.core.errors import renaming
from sparring.core.text import printable

if TYPE_CHECKING:
    from sparring.core import Messages
    from sparring.envs.catalog import EnvInfo


def envs(
    env_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="An environment to describe, such as my_game.py:MyGame."),
    ] = None,
) -> None:
    """List the environments that can be played here and, for the others, the reason why not."""
    from sparring.config.play import DEFAULT_TEMPLATE
    from sparring.envs.catalog import describe, list_environments
    from sparring.envs.game_episode import first_prompt

    if env_id is None:
        _print_list(list_environments())
        return
    with renaming({"env.id": "ID", "env.options": "ID"}):
        info = describe(env_id)
        first = (
            asyncio.run(first_prompt(env_id, info.players[0], DEFAULT_TEMPLATE)) if info.playable else None
        )
    console, why = Console(), "yes" if info.playable else f"no: {info.reason}"
    console.print(Text(info.env_id, style="bold"))
    console.print(f"library  {info.library}\nplayers  {players_text(info.players)}")
    console.print(Text(f"playable {why}"))
    if first is not None:
        _print_example(*first, console)


def _print_list(infos: "list[EnvInfo]") -> None:
    from sparring.view.tables import Row, Table

    playable: list[Row] = [
        (one.env_id, one.library, players_text(one.players)) for one in infos if one.playable
    ]
    others: list[Row] = [(one.env_id, one.reason) for one in infos if not one.playable]
    console = console_of_tables()
    print_table(console, Table(("environment", "library", "players"), [("", "", playable)]))
    console.print()
    print_table(console, Table(("cannot be played here", "because"), [("", "", others)]))
    console.print(f"\n{len(playable)} of {len(infos)} can be played here. For details: sparring envs ID")


def _print_example(legal: list[str] | None, messages: "Messages", console: Console) -> None:
    """Print the legal moves at a game's beginning, and the prompt of its first move."""
    from sparring.config.play import DEFAULT_TEMPLATE

    moves = "not listed by this game" if legal is None else ", ".join(legal)
    console.print(Text(printable(f"moves    {moves}")))
    console.print(f"\nThe prompt of a first move (template {DEFAULT_TEMPLATE}):")
    for message in messages:
        console.print(Text(f"\n{message['role']}", style="bold cyan"))
        console.print(Text(printable(message["content"])))


def players_text(players: list[int]) -> str:
    """Return ``2-4`` for consecutive numbers, else the numbers with commas."""
    if len(players) > 1 and players == list(range(players[0], players[-1] + 1)):
        return f"{players[0]}-{players[-1]}"
    return ", ".join(map(str, players))


SCHEMA = "schema"


def config(
    what: Annotated[
        str, typer.Argument(help="schema (JSON, for editors), or a preset, whose file is printed as it is.")
    ],
) -> None:
    """Print the JSON Schema of configurations, or the file of a preset."""
    if what != SCHEMA:
        from sparring.config.loading import preset_text

        print(preset_text(what), end="")
        return
    from sparring.config.schema import config_schema

    print(json_text(config_schema()), end="")


def reference(
    env: Annotated[str, typer.Option(metavar="ID", help="The game.")],
    train: Annotated[
        bool, typer.Option("--train", help="Train the pool's adapters here, if it has some.")
    ] = False,
) -> None:
    """Show the reference pool of a game: its members and their ratings, which `@reference` plays with.

    Where no solver covers the game, some members are adapters, which this machine trains once.
    """
    from sparring.commands.reference_adapters import pool_table, train_reference
    from sparring.evaluation.reference import reference_pool

    console = Console()
    with renaming({"env.id": "--env"}):
        pool = reference_pool(env)
    if train and not pool.adapters:
        raise InputError("--train", f"the pool of {env} has scripts only", "Leave it out")
    if train:
        train_reference(env, console)
    print_table(console, pool_table(pool))
