"""The id of an environment with the options of its class, in one text: ``maze.py:Maze{"size": 5}``."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from sparring.core.errors import NOT_JSON
from sparring.core.own_code import name_of, resolving, with_file

LONGEST_VALUE = 20
"""Characters of an option's value in a short name."""


def with_options(env_id: str, options: Mapping[str, Any]) -> str:
    """Return the id with options, always in the same order; without any, the id itself."""
    return env_id + (json.dumps(options, sort_keys=True, ensure_ascii=False) if options else "")


def parts_of(env_id: str) -> tuple[str, dict[str, Any]]:
    """Return the id without its options, and the options; an id without a JSON object at its end has none."""
    bare, brace, rest = env_id.partition("{")
    try:
        options: dict[str, Any] = json.loads(brace + rest)
    except NOT_JSON:
        return env_id, {}
    return (bare, options) if options else (env_id, {})


def env_name(env_id: str) -> str:
    """Return the name in records and figures: ``Maze(size=5)``, without the directories of files."""
    bare, options = parts_of(env_id)
    shown = (f"{key}={_value_name(value)}" for key, value in sorted(options.items()))
    return name_of(bare) + (f"({', '.join(shown)})" if options else "")


def class_name(env_id: str) -> str:
    """Return the name for a reader of an environment that is alone, which has none of its options."""
    return name_of(parts_of(env_id)[0])


def with_short_names(text: str, env_ids: Iterable[str]) -> str:
    """Return a text for a reader, in which the environments of a run have short names.

    Of the options, a short name has those in which an environment differs from another of its class, with
    short values. Names stay whole where they would become the same.
    """
    found = {env_name(one): parts_of(one) for one in env_ids}
    short = {name: _short_name(bare, options, [*found.values()]) for name, (bare, options) in found.items()}
    counts = Counter(short.values())
    for name in sorted(short, key=len, reverse=True):
        if counts[short[name]] == 1:
            text = text.replace(name, short[name])
    return text


def _short_name(bare: str, options: Mapping[str, Any], others: Sequence[tuple[str, dict[str, Any]]]) -> str:
    alike = [other for kind, other in others if name_of(kind) == name_of(bare)]
    telling = [key for key in sorted(options) if any(one.get(key) != options[key] for one in alike)]
    shown = (f"{key}={_short_value(options[key])}" for key in telling)
    return name_of(bare) + (f"({', '.join(shown)})" if telling else "")


def _short_value(value: Any) -> str:
    text = _value_name(value)
    if isinstance(value, str):
        text = PurePath(text).name
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def with_files(env_id: str, change: Callable[[str], str]) -> str:
    """Return the id with other files where it and its options name some."""
    bare, options = parts_of(env_id)
    named = {key: with_file(one, change) if isinstance(one, str) else one for key, one in options.items()}
    return with_options(with_file(bare, change), named)


def absolute_id(env_id: str, directory: Path) -> str:
    """Return the id with the files that it and its options name resolved against ``directory``."""
    return with_files(env_id, resolving(directory))


def _value_name(value: Any) -> str:
    return name_of(value) if isinstance(value, str) else json.dumps(value)
