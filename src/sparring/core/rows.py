"""Rows of data: of a JSON Lines file, or of a dataset of the Hugging Face Hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.core.answers import plain_number
from sparring.core.errors import NOT_JSON, InputError, first_line, imported
from sparring.core.files import check_regular, located, open_regular
from sparring.core.messages import check_text

Rows = list[tuple[str, Any]]
"""Rows, each with its place in the source, for errors."""
SAVED = ("state.json", "dataset_dict.json")
"""What ``save_to_disk`` writes for a dataset, and for one with splits."""


def text_of_file(path: str, field: str, fix: str) -> str:
    """Return the text of a file; ``field`` names it in errors, ``fix`` says what to give instead."""
    try:
        with open_regular(located(path)) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(field, f"{path} is not a text file in UTF-8", fix) from error
    except OSError as error:
        raise InputError(field, f"{path} cannot be read ({error.strerror})", "Name a file") from error


def words_of(value: object, *, or_number: bool = False) -> str:
    """Return a text of a row without the spaces around it, or a number as a text.

    It is empty for anything else, and for a text that no model can be told.
    """
    if or_number and isinstance(value, int | float) and not isinstance(value, bool):
        return plain_number(value)
    try:
        check_text(text := value.strip() if isinstance(value, str) else "")
    except ValueError:
        return ""
    return text


def rows_of_file(path: str, field: str) -> Rows:
    """Return the rows of a JSON Lines file; ``field`` names it in errors."""
    rows: Rows = []
    for number, line in enumerate(text_of_file(path, field, "Give JSON Lines").split("\n"), start=1):
        if line.strip():
            try:
                rows.append((f"line {number}", json.loads(line)))
            except NOT_JSON as error:
                said = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
                problem = f"line {number} of {path} is not JSON: {said}"
                raise InputError(field, problem, "Write one object in each line") from error
    return rows


def rows_of_dataset(name: str, split: str, field: str, config: str | None = None) -> Rows:
    """Return the rows of a dataset: one of the Hugging Face Hub, a directory of its files, or one that
    ``save_to_disk`` wrote."""
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise InputError(field, f"there is no directory {name}", "Name one, or a dataset as OWNER/NAME")
    check_regular(Path(name).rglob("*"), field)
    datasets = imported(field, "datasets", "datasets")
    try:
        if any(Path(name, file).is_file() for file in SAVED):
            saved = datasets.load_from_disk(name)
            if isinstance(saved, Mapping) and split not in saved:
                raise InputError(field, f"{name} has no split {split!r}", f"It has: {', '.join(saved)}")
            rows = saved[split] if isinstance(saved, Mapping) else saved
        else:
            rows = datasets.load_dataset(name, config, split=split)
    except InputError:
        raise
    except Exception as error:  # it raises many kinds: of the network, of files, of its own
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(field, f"the dataset {name} cannot be loaded: {reason}", "Name another") from error
    return [(f"row {number}", dict(row)) for number, row in enumerate(rows)]
