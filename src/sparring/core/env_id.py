"""The id of an environment with the options of its class, in one text: ``maze.py:Maze{"size": 5}``."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparring.core.errors import NOT_JSON
from sparring.core.own_code import name_of, resolving, with_file


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
