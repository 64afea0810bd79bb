"""``sparring envs``: the environments that can be played here, and why the others cannot."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring.cli.files import console_of_tables
from sparring.core.text import printable

if TYPE_CHECKING:
    from sparring.envs.catalog import EnvInfo


def envs(
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="An environment to describe, such as my_game.py:MyGame.",
        ),
    ] = None,
) -> None:
    """List the environments that can be played here and, for the others, the reason why not."""
    from sparring.envs.catalog import describe, list_environments
    from sparring.run.checks import renaming

    if env_id is None:
        _print_list(list_environments(), console_of_tables())
        return
    with renaming({"env.id": "ID"}):
        info = describe(env_id)
    _print_details(info, Console())


def _print_list(infos: "list[EnvInfo]", console: Console) -> None:
    playable = _table("environment", "library", "players")
    others = _table("cannot be played here", "because")
    for info in infos:
        if info.playable:
            playable.add_row(info.env_id, info.library, players_text(info.players))
        else:
            others.add_row(info.env_id, info.reason)
    console.print(playable)
    console.print()
    console.print(others)
    console.print(f"\n{playable.row_count} of {len(infos)} can be played here. For details: sparring envs ID")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading)
    return table


def _print_details(info: "EnvInfo", console: Console) -> None:
    console.print(Text(info.env_id, style="bold"))
    console.print(f"library  {info.library}")
    console.print(f"players  {players_text(info.players)}")
    console.print(Text(f"playable {'yes' if info.playable else f'no: {info.reason}'}"))
    if info.playable:
        _print_example(info, console)


def _print_example(info: "EnvInfo", console: Console) -> None:
    """Print the prompt of a game's first move."""
    from sparring.config.play import DEFAULT_TEMPLATE
    from sparring.envs.catalog import make_game
    from sparring.envs.templates import get_template

    game = make_game(info.env_id, info.players[0], seed=0)
    legal = game.legal_actions()
    moves = "not listed by this game" if legal is None else ", ".join(legal)
    console.print(Text(printable(f"moves    {moves}")))
    console.print(f"\nThe prompt of a first move (template {DEFAULT_TEMPLATE}):")
    for message in get_template(DEFAULT_TEMPLATE).messages(game, game.current_pid):
        console.print(Text(f"\n{message['role']}", style="bold cyan"))
        console.print(Text(printable(message["content"])))


def players_text(players: list[int]) -> str:
    """Return ``2-4`` for consecutive numbers, else the numbers with commas."""
    if len(players) > 1 and players == list(range(players[0], players[-1] + 1)):
        return f"{players[0]}-{players[-1]}"
    return ", ".join(map(str, players))
