"""The entry point of the command line: registers the commands and reports errors."""

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from sparring import __version__
from sparring.cli.bench import bench
from sparring.cli.best_responses import exploit, psro
from sparring.cli.card import card
from sparring.cli.environments import config, envs, reference
from sparring.cli.evaluate import evaluate, play, tournament
from sparring.cli.examples import examples, sft
from sparring.cli.options import Exit
from sparring.cli.runs import analyse, compare, doctor, export, report, runs, watch
from sparring.cli.serve import serve
from sparring.cli.train import finetune, train
from sparring.core import InputError, SparringError
from sparring.core.errors import message_of
from sparring.core.interrupts import interrupt_by_sigterm
from sparring.core.own_code import is_from_outside, own_failure
from sparring.core.own_modules import runs_own_code
from sparring.core.text import one_line

app = typer.Typer(
    name="sparring",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train language models by letting them play each other. Try: sparring train kuhn",
)
_OF_FIELDS: list[Callable[..., None]] = [train, finetune, psro]
"""Any field of the configuration is an option of these."""
_OTHERS: list[Callable[..., None]] = [
    *(analyse, bench, card, compare, config, doctor, envs, examples, exploit, export, play),
    *(reference, report, runs, serve, sft, tournament, watch),
]
for _command in _OF_FIELDS:
    app.command(_command.__name__, context_settings={"ignore_unknown_options": True})(_command)
app.command("eval")(evaluate)
for _command in _OTHERS:
    app.command(_command.__name__)(_command)


@app.callback(invoke_without_command=True)
def sparring(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Handle options that come before a command."""
    if version:
        print(f"sparring {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


UNPRINTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""What goes wrong, in no file that has a name, where the output goes to a full disk or nowhere."""


def main(arguments: list[str]) -> int:
    """Run one command and return its exit status, an ``Exit``; any error is one line on stderr."""
    stray = logging.getLogger("asyncio")  # it logs the errors of tasks that nobody awaits, with their traces
    if not stray.handlers:
        stray.addHandler(_OneLine())
    try:
        _check_given_once(arguments)
        status = app(arguments, prog_name="sparring", standalone_mode=False)
    except InputError as error:
        return _fail(message_of(error), Exit.BAD_INPUT)
    except SparringError as error:
        return _fail(message_of(error), Exit.FAILED)
    except typer.TyperException as error:
        return _fail(
            f"{error.format_message()} (see: sparring {_command_in(arguments)}--help)", Exit.BAD_INPUT
        )
    except BaseException as error:
        if isinstance(error, typer.Abort) or is_from_outside(error):
            return Exit.INTERRUPTED
        if _is_of_closed_output(error):
            return _end_silently()
        if isinstance(error, OSError) and error.filename is None and error.errno in UNPRINTED:
            return _end_unprinted(error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _fail(
                f"{str(error.filename)[:50]}...: is too long for a file's name. Shorten it", Exit.BAD_INPUT
            )
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror or 'it cannot be used'}", Exit.FAILED)
        if isinstance(error, SystemExit) or runs_own_code():  # what it left behind may fail anywhere
            return _fail(own_failure(error), Exit.FAILED)
        raise
    return status if isinstance(status, int) else Exit.DONE


class _OneLine(logging.Handler):
    """Prints a record as one line on stderr, with the reason of its error."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            _note(record.getMessage(), record.exc_info[1] if record.exc_info else None)


def _note(problem: str, error: BaseException | None) -> None:
    """Print an error that ends nothing as one line: Python itself would print its trace."""
    reason = f": {own_failure(error)}" if error is not None else ""
    print(f"note: {one_line(problem)[:100]}{reason}", file=sys.stderr)


def run() -> None:
    """Entry point of the ``sparring`` command."""
    interrupt_by_sigterm()
    threading.excepthook = lambda failed: _note("a thread failed", failed.exc_value)
    sys.unraisablehook = lambda failed: _note("an error that nobody can catch", failed.exc_value)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when torch is loaded. GNU's OpenMP lets a thread spin for milliseconds while it waits for
        # another. If the other is descheduled, as on a busy machine, that takes longer than the work itself.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end
    status = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _end_silently()
    except OSError as error:
        status = _end_unprinted(error)
    sys.exit(status)


def _is_of_closed_output(error: BaseException) -> bool:
    """Return whether an error is that nobody reads what is printed: Rich then ends the program itself."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    try:
        sys.stdout.flush()
    except OSError as problem:
        return isinstance(error, BrokenPipeError) and isinstance(problem, BrokenPipeError)
    return False


def _end_unprinted(error: OSError) -> int:
    """Say on stderr that the output, such as a file on a full disk, cannot be written."""
    _end_silently()
    return _fail(f"the output cannot be written: {error.strerror or error}", Exit.FAILED)


def _end_silently() -> int:
    """Let what is still to be printed, also by Python at its end, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OUTPUT_CLOSED


def _fail(message: str, status: int) -> int:
    print(f"error: {one_line(message).rstrip('.')}", file=sys.stderr)
    return status


def _check_given_once(arguments: list[str]) -> None:
    """Raise an InputError if an option is there twice, of which the last one would win without a word."""
    options = [one.partition("=")[0] for one in arguments if one.startswith("--")]
    twice = {one for one in options if options.count(one) > 1}
    if not twice:
        return
    command = typer.main.get_group(app).commands.get(arguments[0])
    repeatable = {
        option
        for parameter in (command.params if command is not None else [])
        if getattr(parameter, "multiple", False)
        for option in parameter.opts
    }
    wrong = sorted(twice - repeatable - {"--"})
    if wrong:
        raise InputError(wrong[0], "is given twice", "Give it once")


def _command_in(arguments: list[str]) -> str:
    """Return the name of the command with a space after it, or an empty text if there is none."""
    names = [command.name for command in app.registered_commands]
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
