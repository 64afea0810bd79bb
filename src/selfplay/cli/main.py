"""The command line: what it says when something is wrong, and the commands it is made of."""

import sys
from typing import Annotated

import typer

from selfplay import __version__
from selfplay.cli.environments import envs
from selfplay.cli.runs import evaluate, play, report
from selfplay.cli.serve import serve
from selfplay.cli.train import train
from selfplay.cli.watch import watch
from selfplay.core import InputError, SelfplayError

app = typer.Typer(
    name="selfplay",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train language models by letting them play each other. Try: selfplay train quickstart",
)
app.command("train", context_settings={"ignore_unknown_options": True})(train)
app.command("eval")(evaluate)
app.command("envs")(envs)
app.command("play")(play)
app.command("report")(report)
app.command("serve")(serve)
app.command("watch")(watch)


@app.callback(invoke_without_command=True)
def selfplay(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Handle what comes before a command."""
    if version:
        print(f"selfplay {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str]) -> int:
    """Run one command and return its exit status; whatever is wrong is one line on stderr.

    0: done. 1: it could not be finished. 2: something in the input is wrong. 130: interrupted.
    """
    try:
        status = app(arguments, prog_name="selfplay", standalone_mode=False)
    except InputError as error:
        return _fail(str(error), 2)
    except SelfplayError as error:
        return _fail(str(error), 1)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()} (see: selfplay {_command_in(arguments)}--help)", 2)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return status if isinstance(status, int) else 0


def run() -> None:
    """Entry point of the ``selfplay`` command."""
    sys.exit(main(sys.argv[1:]))


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split()).rstrip(".")
    print(f"error: {line}", file=sys.stderr)
    return status


def _command_in(arguments: list[str]) -> str:
    """Return the command that was meant, with a space after it, or nothing."""
    names = [command.name for command in app.registered_commands]
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
