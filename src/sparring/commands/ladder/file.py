"""A ladder's file: games, recipes and rules of choosing opponents, each as fields of the configuration."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sparring.config.base import MOST_SEED, FilePath, Line, Name, Settings
from sparring.config.problems import read_settings
from sparring.config.toml_files import read_toml, toml_text
from sparring.core import InputError
from sparring.evaluation.figures import NASH_CONV

CONFIG, RECIPE = "config", "recipe"
"""What a table may name besides fields: a configuration, and a recipe that is laid over it."""
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS_OF_TOML = ("true", "false", "inf", "nan")
PLACEHOLDERS = ("{game}", "{env}", "{seed}", "{out}", "{games}")
"""What may stand in the name of a policy file."""
_PLACEHOLDER = re.compile(r"\{\w*\}")
_NAME = re.compile(r"\w[\w-]*")
_OWN = ("seed", "model.threads", "run.directory")
"""The fields that the ladder itself gives each run."""

Fields = dict[str, Any]
Tables = Annotated[dict[Name, Fields], Field(max_length=1000)]


class EntrySettings(Settings):
    """What others made: policy files, or a member of matches."""

    policies: FilePath | None = None
    """Policy files, with {game}, {env}, {seed} and {out} in the name, and {games} of training if several."""
    command: Line | None = None
    """What makes the policy files of one game and seed; {game}, {env}, {seed} and {out} may stand in it."""
    member: Line | None = None
    """A model as ``sparring tournament`` names it, also behind an API."""


class LadderSettings(Settings):
    """The file. Each table has fields of the configuration, ``config`` and ``recipe``; later tables win."""

    seeds: Annotated[list[Annotated[int, Field(ge=0, le=MOST_SEED)]], Field(min_length=1, max_length=1000)]
    """The seeds of each combination."""
    measure: Line = NASH_CONV
    """The figure that is compared; of a program's measure less is better if "smallest " is before it."""
    base: Fields = Field(default={})
    """The fields of all runs."""
    games: Annotated[Tables, Field(min_length=1)]
    """What is played."""
    recipes: Tables = Field(default={})
    """How is learned."""
    opponents: Annotated[Tables, Field(min_length=1)] = Field(default={"": {}})
    """Whom the policy meets."""
    entries: Annotated[dict[Name, EntrySettings], Field(max_length=1000)] = Field(default={})
    """What others made."""

    @property
    def trained(self) -> Tables:
        """The recipes; without any, the configuration is trained as it is, unless others alone compete."""
        return self.recipes or ({} if self.entries else {"": {}})


def read_ladder(path: Path) -> LadderSettings:
    """Read a ladder's file.

    Raises:
        InputError: it does not exist, is not TOML, or a field is wrong.
    """
    data = read_toml(str(path))
    _check_known(data, LadderSettings)
    for name, entry in _tables(data.get("entries")):
        _check_known(entry, EntrySettings, f"entries.{name}.")
    settings = read_settings(LadderSettings, data)
    for section in ("games", "recipes", "opponents", "entries"):
        for name in data.get(section, ()):
            if not _NAME.fullmatch(name):
                fix = "Use letters, digits, _ and -, and begin with no -"
                raise InputError(f"{section}.{name}", "is not a plain name", fix)
    for name, made in settings.entries.items():
        for word in _PLACEHOLDER.findall(made.policies or ""):
            if word not in PLACEHOLDERS:
                fix = f"Use {', '.join(PLACEHOLDERS)}"
                raise InputError(f"entries.{name}.policies", f"{word} stands for nothing", fix)
    for name in settings.entries.keys() & settings.recipes.keys():
        raise InputError(f"entries.{name}", "is also the name of a recipe", "Choose another")
    if len(set(settings.seeds)) < len(settings.seeds):
        raise InputError("seeds", "names one seed twice", "Name it once")
    return settings


def options_of(*tables: Mapping[str, Any]) -> tuple[str, str | None, dict[str, str]]:
    """Return the configuration, the recipe and the fields of ``sparring train`` that tables ask for together.

    Raises:
        InputError: no table names a configuration, a recipe is no text, or a field is the ladder's own.
    """
    config, recipe, fields = "", None, dict[str, str]()
    for table in tables:
        given = dict(table)
        config = str(given.pop(CONFIG, config))
        recipe = given.pop(RECIPE, recipe)
        for name, text in _flat(given, "").items():
            fields.pop(name, None)  # the later one also comes later
            fields[name] = text
    if not config:
        raise InputError("base.config", "is missing", 'Name a preset or a .toml file: config = "kuhn"')
    if not isinstance(recipe, str | None):
        raise InputError(
            RECIPE, f"{recipe!r} is not a text", 'Name a recipe or a .toml file: recipe = "magnet"'
        )
    for name in _OWN:
        if name in fields:
            raise InputError(name, "is given by the ladder", "Leave it out")
    return config, recipe, fields


def _tables(value: Any) -> Iterator[tuple[str, Fields]]:
    if isinstance(value, dict):
        yield from ((name, one) for name, one in value.items() if isinstance(one, dict))


def _check_known(table: Fields, settings: type[Settings], prefix: str = "") -> None:
    names = list(settings.model_fields)
    for name in table:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            hint = f"Did you mean {prefix}{close[0]}?" if close else f"Use {', '.join(names)}"
            raise InputError(f"{prefix}{name[:60]}", "there is no such field in a ladder", hint)


def _flat(value: Any, name: str) -> dict[str, str]:
    """Return the fields of nested tables by dotted name; a list is one value."""
    if not isinstance(value, dict) or (name and not value):
        return {name: _option(value)}
    flat: dict[str, str] = {}
    for key, one in value.items():
        flat |= _flat(one, f"{name}.{key}" if name else key)
    return flat


def _option(value: Any) -> str:
    """Return a value as an option of the command line has it: most texts need no quotes."""
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS_OF_TOML
    return value if is_plain else toml_text(value)
