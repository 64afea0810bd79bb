"""What a command writes: tables to standard output, and files where the user asks for them."""

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from sparring.core import InputError, SparringError

WIDTH_OF_FILES = 160
"""Columns where standard output is not a terminal."""


def console_of_tables() -> Console:
    """Return a console that is wide where standard output is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def check_writable(option: str, file: Path) -> None:
    """Check before long work that a file can be written; an existing file will be replaced.

    Raises:
        InputError: it is a directory, or its directory does not exist or is not writable.
    """
    if file.is_dir():
        raise InputError(option, f"{file} is a directory", "Name a file")
    if not file.parent.is_dir():
        raise InputError(option, f"there is no directory {file.parent}", "Name a file in one that exists")
    if not os.access(file.parent, os.W_OK):
        raise InputError(option, f"{file.parent} is not writable", "Name a file in another directory")


def write_text(file: Path, text: str) -> None:
    """Write a file completely or not at all.

    Raises:
        SparringError: it cannot be written.
    """
    from sparring.core.files import write_users_file

    try:
        write_users_file(file, text.encode())
    except OSError as error:
        raise SparringError(f"{file} cannot be written ({error.strerror})") from error


def json_text(values: Any) -> str:
    """Return values as readable JSON. Characters outside ASCII are escaped, so a terminal shows it safely."""
    return json.dumps(values, indent=1, allow_nan=False) + "\n"
