"""``sparring psro``: best responses to mixtures of best responses, and the mixture that they end with."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.fields import add_options, split_arguments
from sparring.cli.files import console_of_tables
from sparring.cli.model_options import ADDRESS, RUNTIME, SEED
from sparring.core import InputError
from sparring.core.shell_command import shell_command

_HELP = "A .toml file or a preset; any field follows as --psro.iterations 5."


def psro(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG --a.b=VALUE", help=_HELP, show_default=False)
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the directory; by default psro- and the configuration's.")
    ] = None,
    runtime: Annotated[str | None, RUNTIME] = None,
    address: Annotated[str | None, ADDRESS] = None,
) -> None:
    """Train best responses to mixtures of best responses; the last mixture is a model.

    If the command was stopped or killed, give it again: it continues.
    """
    from sparring.cli.console_progress import ConsoleProgress
    from sparring.commands.best_response import train_to_the_end
    from sparring.commands.psro import check_psro
    from sparring.commands.psro import psro as run_psro
    from sparring.commands.psro_table import psro_table
    from sparring.config import load_config
    from sparring.population.meta_strategies import check_installed
    from sparring.run.checks import check_config, renaming
    from sparring.run.progress_views import print_line, working
    from sparring.run.run_layout import PSRO_FILE
    from sparring.run.run_names import check_plain_name

    words, overrides = split_arguments(arguments or [])
    if len(words) != 1:
        problem = "is missing" if not words else f"one is enough, but there are {len(words)}"
        raise InputError("CONFIG", problem, "Try: sparring psro kuhn")
    add_options(overrides, seed=seed, runtime=runtime, address=address)
    config = load_config(words[0], overrides)
    check_psro(config)
    check_installed("sparring psro")
    if name is not None:
        check_plain_name(name)
    path = Path(config.run.directory) / (name or f"psro-{Path(words[0]).stem}")
    if not (path / PSRO_FILE).exists():
        check_config(config)
    console, tables = Console(), console_of_tables()
    if config.run.runtime == "ray":
        with working(console, "importing Ray"):
            from sparring.cluster.ray_import import import_ray

            import_ray(silent=True)
    with renaming({"directory": "--name"}):
        found = run_psro(
            config,
            path,
            train=partial(train_to_the_end, console=console),
            progress=ConsoleProgress(console),
            on_state=lambda state: tables.print(psro_table(state)),
        )
    if found is not None:
        print_line(console, f"mixture: {path / 'mixture.json'}")
        print_line(console, f"page: {path / 'psro.html'}")
        print_line(console, f"payoffs: {path / 'payoffs' / 'tournament.html'}")
        print_line(console, f"next: {shell_command('eval', path)}   or: {shell_command('play', path)}")
