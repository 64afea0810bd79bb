"""Read a validated configuration from TOML and write it back."""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from sparring.config.config import Config
from sparring.config.facts import Relative
from sparring.config.fields import ANY_ENTRY, config_fields
from sparring.config.recipe import apply_recipe, drop_others, lay_over, read_recipe
from sparring.config.toml_files import (
    EXTENDS,
    MAX_KEYS,
    bundled_names,
    bundled_text,
    parse_toml,
    read_bundled,
    read_toml,
)
from sparring.config.validation import known_part, problems_with, validated
from sparring.core import InputError
from sparring.core.own_code import resolving
from sparring.core.own_modules import imported_beside

PRESETS = "presets"
MAX_DIGITS = 10
"""An index with as many digits or more is none."""
MOST_LAID = 20
"""The longest chain of files that extend each other."""
MOST_SHOWN = 200
"""The longest text of a user's own that an error repeats."""


def load_config(source: str, overrides: Mapping[str, str | None], recipe: str | None = None) -> Config:
    """Read a configuration and make its paths absolute, so that a run can be resumed from any directory.

    A path in a file is relative to the file, one in ``overrides`` to the working directory.

    Args:
        source: path of a TOML file, or the name of a bundled preset. Its ``extends`` names another, over
            which it is laid.
        recipe: name or path of a recipe, which is laid over the source and under ``overrides``.
        overrides: values by dotted name (``learning.steps``, ``envs.0.id``), written as in TOML. A value that
            is not valid TOML is taken as text, unless it begins like a list or a table; ``None`` leaves a
            field out.

    Raises:
        InputError: the file, preset or recipe does not exist, it is not TOML, or a field is wrong.
    """
    return validated(_read_data(source, overrides, recipe))


def config_problems(
    source: str, overrides: Mapping[str, str | None], recipe: str | None = None
) -> list[InputError]:
    """Return everything that is wrong with a configuration; ``load_config`` raises the first of it."""
    try:
        data = _read_data(source, overrides, recipe)
    except InputError as error:
        return [error]
    return problems_with(data)


def load_known(source: str, overrides: Mapping[str, str | None], recipe: str | None = None) -> Config:
    """Load a configuration as :func:`load_config` does, without the fields that do not exist."""
    return known_part(_read_data(source, overrides, recipe))


def _read_data(source: str, overrides: Mapping[str, str | None], recipe: str | None) -> dict[str, Any]:
    data = _read_source(source)
    if recipe is not None:
        changes = read_recipe(recipe)
        with_files(changes, resolving(Path(recipe).parent))
        apply_recipe(data, changes)
    for name, text in overrides.items():
        _override(data, name, None if text is None else toml_value(name, text))
    with_files(data, resolving(Path()))
    return data


def dump_config(config: Config) -> str:
    """Return the whole configuration as TOML, without unset fields; it loads as the same configuration."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def dump_active(config: Config, without_effect: Mapping[str, str]) -> str:
    """Return a configuration as TOML without the fields that do nothing.

    Comments at the end name those of them that are written in its file or in a recipe.

    Args:
        config: the configuration.
        without_effect: fields and sections by dotted name, each with the reason why it does nothing.
    """
    data = config.model_dump(exclude_none=True)
    lines = []
    for name, reason in without_effect.items():
        if _take_out(data, name.split(".")) and _is_written(config, name.split(".")):
            lines.append(f"# without effect: {name} ({reason})")
    return "\n".join([tomli_w.dumps(data), *lines, ""]) if lines else tomli_w.dumps(data)


def _take_out(data: Any, path: list[str]) -> bool:
    """Take a field out of nested tables, and tables that then are empty; return whether it was there."""
    name, *inner = path
    if isinstance(data, list):
        return _take_out(data[int(name)], inner)
    if name not in data:
        return False
    if not inner:
        del data[name]
        return True
    taken = _take_out(data[name], inner)
    if data[name] == {}:
        del data[name]
    return taken


def _is_written(settings: Any, path: list[str]) -> bool:
    """Return whether a field has a value from a file or a recipe, or from the command line."""
    name, *inner = path
    if isinstance(settings, list):
        return _is_written(settings[int(name)], inner)
    if isinstance(settings, dict):
        return name in settings and _is_written(settings[name], inner)
    return name in settings.model_fields_set and (not inner or _is_written(getattr(settings, name), inner))


def preset_names() -> list[str]:
    """Return the names of the bundled presets."""
    return bundled_names(PRESETS)


def preset_text(name: str) -> str:
    """Return the file of a bundled preset, with its comments; raise InputError if there is none."""
    if name not in preset_names():
        raise _no_such_source(name)
    return bundled_text(PRESETS, name)


def _read_source(source: str, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file or a preset, laid over the one that its ``extends`` names, if any."""
    data = _read_one(source)
    with_files(data, resolving(Path(source).parent))
    for table, fields in data.items():
        if isinstance(fields, dict) and EXTENDS in fields:
            problem = f"stands in the table {table}"
            raise InputError(EXTENDS, problem, "Write it on the first line, before all tables")
    if EXTENDS not in data:
        return data
    base = data.pop(EXTENDS)
    if not isinstance(base, str) or not base.strip():
        raise InputError(EXTENDS, f"{base!r} is not a name", "Name a preset or a .toml file")
    beside = Path(source).parent / base
    if base not in preset_names() and (base.endswith(".toml") or beside.exists()):
        base = str(beside)
    laid = (*seen, Path(source).resolve())
    if Path(base).resolve() in laid or len(laid) > MOST_LAID:
        problem = f"{base} is laid over itself, or over more than {MOST_LAID} others"
        raise InputError(EXTENDS, problem, "Name another preset or file")
    if base not in preset_names() and not Path(base).exists():
        missing = _no_such_source(base)
        raise InputError(EXTENDS, f"{source} names {base}, and {missing.problem}", missing.fix)
    whole = _read_source(base, laid)
    for one, other in (("envs", "program"), ("program", "envs")):
        if one in data:
            whole.pop(other, None)  # what is played replaces what was played
    drop_others(whole, data)
    lay_over(whole, data)
    return whole


def _read_one(source: str) -> dict[str, Any]:
    path = Path(source)
    if not path.is_file() and source in preset_names():
        return read_bundled(PRESETS, source)
    if path.is_dir():
        raise InputError(
            source,
            "is a directory, not a configuration",
            f"Give a .toml file. To continue a run: --resume {source}",
        )
    if not path.exists():
        raise _no_such_source(source)
    return read_toml(source)


def with_files(data: dict[str, Any], change: Callable[[str], str]) -> None:
    """Change the path of every file that a field names; what is wrong is left for the validation."""
    for field in config_fields():
        for fact in field.info.metadata:
            if isinstance(fact, Relative):
                _change(data, field.written, fact, change)


def own_files(config: Config) -> list[str]:
    """Return the files of a user's own that a configuration names, apart from its model and its adapters.

    The modules beside them that this process has imported belong to them.
    """
    data, found = config.model_dump(), dict[str, None]()

    def note(path: str) -> str:
        if os.path.isfile(path):
            found[os.path.abspath(path)] = None
        return path

    del data["model"]
    with_files(data, note)
    for file in [file for file in found if file.endswith(".py")]:
        here, there = Path(file).parent, Path(file).resolve().parent
        found |= dict.fromkeys(str(here / one.relative_to(there)) for one in imported_beside(Path(file)))
    return [*found]


def _change(node: Any, path: Sequence[str], fact: Relative, change: Callable[[str], str]) -> None:
    """Change the texts at a path in nested tables and lists, where ``*`` stands for every entry."""
    name, *inner = path
    keys: Iterable[Any] = ()
    if isinstance(node, dict):
        keys = list(node) if name == ANY_ENTRY else [name] if name in node else []
    elif isinstance(node, list) and name == ANY_ENTRY:
        keys = range(len(node))
    for key in keys:
        if inner:
            _change(node[key], inner, fact, change)
        elif isinstance(node[key], dict | list):
            _change(node[key], [ANY_ENTRY], fact, change)
        elif isinstance(node[key], str):
            node[key] = fact.with_file(node[key], change)


OF_A_PAPER = "a paper's, such as papers/spiral"


def _no_such_source(source: str) -> InputError:
    presets = preset_names()
    close = difflib.get_close_matches(source, presets, n=1)
    own = [name for name in presets if "/" not in name]
    hint = (
        f"Did you mean {close[0]}?"
        if close
        else f"Give a .toml file or one of {', '.join(own)}, or {OF_A_PAPER}"
    )
    if source.endswith(".toml"):
        return InputError(source, "there is no such file", hint)
    return InputError(source, "no file or preset has this name", hint)


def toml_value(name: str, text: str) -> Any:
    """Parse one TOML value for the field ``name``; return the text itself if it is not valid TOML."""
    try:
        table = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(("[", "{")):
            problem = f"{text if len(text) < MOST_SHOWN else 'the value'} is not TOML: {error}"
            raise InputError(
                name, problem, "Put texts in quotes: '[\"random\"]' or '{type = \"gae\"}'"
            ) from error
        return text
    return table["value"] if set(table) == {"value"} else text


def _override(data: dict[str, Any], name: str, value: Any) -> None:
    parts = name.split(".")
    if len(parts) > MAX_KEYS:
        raise InputError(f"--{name[:MOST_SHOWN]}...", "there is no such option", "Name a field")
    node: Any = data
    for depth, part in enumerate(parts):
        here = ".".join(parts[:depth])
        if isinstance(node, list):
            _check_index(node, part, here)
            key: str | int = int(part)
        elif isinstance(node, dict):
            key = part
        else:
            raise InputError(name, f"{here} is {node!r}, not a table", f"Set {here} itself")
        if depth == len(parts) - 1:
            node[key] = value
        elif isinstance(node, list):
            node = node[int(part)]
        else:
            node = node.setdefault(part, {})


def _check_index(entries: list[Any], part: str, here: str) -> None:
    if part.isascii() and part.isdigit() and len(part) < MAX_DIGITS and int(part) < len(entries):
        return
    numbers = ", ".join(f"{here}.{index}" for index in range(len(entries))) or f"{here} = [...]"
    size = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    raise InputError(
        f"{here}.{part[:MAX_DIGITS]}", f"there is no such entry: {here} has {size}", f"Use {numbers}"
    )


MOST_NAMED = 3


def flat_fields(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables by dotted name; the tables of a list are numbered, other lists are values."""
    if isinstance(values, list) and values and all(isinstance(one, dict) for one in values):
        values = {str(place): one for place, one in enumerate(values)}
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flat_fields(value, f"{prefix}.{name}" if prefix else name)
    return flat


def differences_text(one: Config, other: Config) -> str:
    """Return the dotted names of the first fields in which two configurations differ, for an error.

    Fields that only one of them has differ too.
    """
    first, second = (flat_fields(config.model_dump()) for config in (one, other))
    absent = object()
    every = dict.fromkeys([*first, *second])
    names = [name for name in every if first.get(name, absent) != second.get(name, absent)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
