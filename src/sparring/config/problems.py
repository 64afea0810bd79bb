"""Turn pydantic's validation errors into one line that names the field and the fix."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparring.config.facts import FOR_GAMES, Only
from sparring.config.fields import ANY_ENTRY, ConfigField, config_fields, fields_by_path, models_in
from sparring.config.model import SamplingSettings
from sparring.core import InputError
from sparring.core.text import printable

Location = tuple[int | str, ...]
Read = TypeVar("Read", bound=BaseModel)

OF_TRAINING = ("inference", "envs")
"""The sections that say how the policies draw in training."""
SAMPLING = ("sampling", *SamplingSettings.model_fields)
_MAX_SHOWN = 60
_KEY = "[key]"
"""What pydantic's locations end with if a name of the user's own is wrong."""


def read_settings(kind: type[Read], data: Mapping[str, Any]) -> Read:
    """Return settings of this kind. Raises InputError: the first error in ``data``."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise first_problem(error, data) from error


def first_problem(error: ValidationError, data: Mapping[str, Any]) -> InputError:
    """Return the first error in ``data``."""
    return problems_in(error, data)[0]


def first_in_short(error: ValidationError) -> str:
    """Return the first error in data that is not a user's configuration: its place and what is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")


def problems_in(error: ValidationError, data: Mapping[str, Any]) -> list[InputError]:
    """Return the errors in ``data``, one for each field. Unknown fields come first, because they explain
    missing ones."""
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    problems: dict[str, InputError] = {}
    for one in (_input_error(detail, data) for detail in details):
        problems.setdefault(one.field, one)
    return [*problems.values()]


def wrong_places(error: ValidationError, data: Mapping[str, Any]) -> list[tuple[Location, bool]]:
    """Return where ``data`` is wrong, and whether that is because there is no such field."""
    return [
        (tuple(path_in(_location(detail), data)), detail["type"] == "extra_forbidden")
        for detail in error.errors(include_url=False)
    ]


def _location(detail: ErrorDetails) -> Location:
    location, field = detail["loc"], detail.get("ctx", {}).get("field")
    if location and location[-1] == _KEY:
        location = location[:-2]
    return (*location, field) if field else location


def _input_error(detail: ErrorDetails, data: Mapping[str, Any]) -> InputError:
    location, kind, context = _location(detail), detail["type"], detail.get("ctx", {})
    for end in range(1, len(location) + 1):
        if fact := _refused(location[:end], data.get("program")):
            return InputError(dotted(location[:end], data), fact.why, fact.fix)
    field = dotted(location, data)
    if kind == "extra_forbidden" and location[0] in OF_TRAINING and location[-1] in SAMPLING:
        problem = "is not for training, which draws from the distribution that is learned"
        return InputError(field, problem, "Set it in evaluation.sampling or population.sampling")
    if kind == "extra_forbidden":
        return InputError(field, "there is no such field", _hint_for_unknown(location, field))
    if kind == "missing" and not isinstance(location[-1], int):
        return InputError(field, "is missing", f"Add it: {_what_it_is(location)}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(detail, field)
    shown = _shown(detail["input"])
    if kind == "at_field":
        got = f" (got {shown})" if context["shows"] else ""
        return InputError(field, f"{context['problem']}{got}", context["fix"])
    if kind == "literal_error":
        choices = context["expected"].replace("'", '"')
        return InputError(field, f"{shown} is not a valid value", f"Use {choices}")
    if kind == "missing":
        field = dotted(location[:-1], data)
    if kind == "list_type":
        if _names_entries(detail["input"]):
            return InputError(field, "is not set, so it has no entry to change", f"Use {field} = [...]")
        kind = "list_of_tables" if _holds_tables(location) else kind
    if kind not in _TEXTS:
        return InputError(field, f"{detail['msg']} (got {shown})", "Correct it")
    problem, fix = _TEXTS[kind]
    words = {name: number_text(value) for name, value in context.items()} | {"shown": shown, "field": field}
    return InputError(field, f"{problem.format(**words)} (got {shown})", fix.format(**words))


_TEXTS = {
    "greater_than_equal": ("must be at least {ge}", "Give {ge} or more"),
    "greater_than": ("must be greater than {gt}", "Give a greater number"),
    "less_than": ("must be less than {lt}", "Give a smaller number"),
    "less_than_equal": ("must be at most {le}", "Give {le} or less"),
    "too_short": ("must have at least one entry", "Add one"),
    "too_long": ("must have at most {max_length} values", "Remove the rest"),
    "missing": ("has too few values", "Add more"),
    "string_too_short": ("must not be empty", "Write something, or leave it out"),
    "string_too_long": ("must have at most {max_length} characters", "Shorten it"),
    "list_of_tables": ("must be a list of tables", "Write [[{field}]], one for each entry"),
    "int_type": ("must be a whole number", "Write digits only, without quotes"),
    "float_type": ("must be a number", "Write it without quotes"),
    "finite_number": ("must be a finite number", "Give an ordinary number"),
    "bool_type": ("must be true or false", "Write one of them, without quotes"),
    "string_type": ("must be text", 'Put it in quotes: "{shown}"'),
    "string_unicode": ("must be text in UTF-8", "Correct it"),
    "dict_type": ("must be a table", "Give its fields in a section of their own"),
    "string_pattern_mismatch": ("must name a file and a class", 'Write them like "my_file.py:MyClass"'),
    "list_type": ("must be a list", "Put it in brackets: [{shown}]"),
    "tuple_type": ("must be a list", "Put the values in brackets, with commas between them"),
    "model_type": ("must be a table of fields", "Give its fields in a section of their own"),
    "model_attributes_type": ("must be a table of fields", 'Write it like {{type = "..."}}'),
}


def _wrong_tag(detail: ErrorDetails, field: str) -> InputError:
    entry = _pattern(detail["loc"])
    tags = [one.path[-2] for one in config_fields() if one.path[:-2] == entry and one.name == "type"]
    choices = ", ".join(f'"{tag}"' for tag in tags)
    if detail["type"] == "union_tag_not_found":
        return InputError(f"{field}.type", "is missing", f"Use one of {choices}")
    return InputError(
        f"{field}.type", f"{_shown(detail['input']['type'])} is not a valid type", f"Use one of {choices}"
    )


def dotted(location: Location, data: Mapping[str, Any]) -> str:
    """Return a location as the user writes it, without the types with which pydantic distinguishes tables."""
    return ".".join(_cut(str(part)) for part in path_in(location, data))


def path_in(location: Location, data: Mapping[str, Any]) -> list[int | str]:
    """Return a location without the types with which pydantic distinguishes tables, or kinds of values."""
    parts: list[int | str] = []
    node: Any = data
    was_type = False
    for depth, part in enumerate(location):
        if _is_kind(part, node):
            continue
        may_be_type = depth < len(location) - 1 and isinstance(node, dict) and not was_type
        was_type = may_be_type and (node["type"] == part if "type" in node else part not in node)
        if was_type:
            continue  # which may also be the name of a field
        parts.append(part)
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    return parts


def _is_kind(part: int | str, value: Any) -> bool:
    """Whether a part of a location names a kind of value, not an entry of it or a field.

    A text may stand for a table, as the name of a task does.
    """
    if (
        value is None
        or isinstance(value, dict)
        or (isinstance(value, list | tuple) and isinstance(part, int))
    ):
        return False
    return all(part != one.name for one in config_fields())


def _pattern(location: Location) -> tuple[str, ...]:
    """Return the path of the fields at a location: ``*`` stands for an index, or for a name of the user's."""
    return _general(map(str, location), _entries_of_paths())


@lru_cache(maxsize=1)
def _entries_of_paths() -> set[tuple[str, ...]]:
    return _entries(field.path for field in config_fields())


@lru_cache(maxsize=1)
def _entries_as_written() -> set[tuple[str, ...]]:
    return _entries(field.written for field in config_fields())


def _entries(paths: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the paths of entries, which end in ``*``. They are searched for each of thousands of errors."""
    return {path[:end] for path in paths for end in range(1, len(path) + 1) if path[end - 1] == ANY_ENTRY}


def _general(parts: Iterable[str], entries: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return ``parts`` with ``*`` for a number, and for any part in the place of one in ``entries``."""
    pattern: tuple[str, ...] = ()
    for part in parts:
        entry = (*pattern, ANY_ENTRY)
        pattern = entry if part.isdigit() or entry in entries else (*pattern, part)
    return pattern


def _fields_at(location: Location) -> list[ConfigField]:
    return fields_by_path().get(_pattern(location), [])


def _refused(location: Location, program: Any) -> Only | None:
    """Return the fact that a field is for games and a program is played, or the other way round."""
    facts = [fact for field in _fields_at(location) for fact in field.info.metadata]
    for fact in facts:
        if isinstance(fact, Only) and fact.other == FOR_GAMES.other and not fact.holds(program):
            return fact
    return None


def _names_entries(value: Any) -> bool:
    """Return whether a value is a table of numbers, as ``--envs.0.id`` makes it where there is no list."""
    return isinstance(value, dict) and bool(value) and all(name.isdigit() for name in value)


def _holds_tables(location: Location) -> bool:
    return any(models_in(field.info.annotation) for field in _fields_at(location))


def _hint_for_unknown(location: Location, field: str) -> str:
    """Suggest a field of the same table, or of another one, that the user may have meant."""
    *table, name = _pattern(location)
    fields = config_fields()
    siblings = [other.name for other in fields if other.path[:-1] == tuple(table)]
    owners = [other.path[-2] for other in fields if other.written == _written(field)]
    if owners:
        belongs = f"It belongs to type {_either(owners)}"
        section, _, _ = field.rpartition(".")
        whole = f"""--{section} '{{type = "..."}}' replaces the whole table"""
        return belongs if ANY_ENTRY in table else f"{belongs}. Leave it out; {whole}"
    named = namesakes(name)
    very_close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.85)
    own = f"{field.removesuffix(name)}options.{name}" if "options" in siblings else ""
    if len(named) == 1 and not very_close:
        return f"Did you mean {named[0]}{f', or {own} of a class of your own' * bool(own)}?"
    close = very_close or difflib.get_close_matches(name, siblings, n=1)
    if close:
        return f"Did you mean {field.removesuffix(name)}{close[0]}?"
    fields_here = f"Fields of this section: {', '.join(siblings)}"
    return f"{fields_here}. A class of your own gets {own}" if own else fields_here


def _either(types: Sequence[str]) -> str:
    """Return types of entries in quotes, the last after "or"."""
    *others, last = (f'"{one}"' for one in dict.fromkeys(types))
    return f"{', '.join(others)} or {last}" if others else last


def namesakes(name: str) -> list[str]:
    """Return the fields of this name, as a user writes them, but for those that need an entry's index."""
    named = (other.written for other in config_fields() if other.name == name)
    return list(dict.fromkeys(".".join(written) for written in named if _has_one_path(written)))


def _written(field: str) -> tuple[str, ...]:
    return _general(field.split("."), _entries_as_written())


def _has_one_path(path: tuple[str, ...]) -> bool:
    """Return whether a field can be named without an entry's index or the program's type."""
    return ANY_ENTRY not in path and not (path[0] == "program" and len(path) > 1)


def _what_it_is(location: Location) -> str:
    texts = [field.info.description or "" for field in _fields_at(location)]
    return texts[0] if texts else "it has no default"


def number_text(value: float | str) -> str:
    """Return a bound as it is written: whole numbers with all their digits."""
    if isinstance(value, float):
        return f"{value:g}"
    return _cut(str(value))


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_MAX_SHOWN:
        return "a number of more than 60 digits"
    return _cut(
        str(value) if isinstance(value, float) else json.dumps(value, default=str, ensure_ascii=False)
    )


def _cut(text: str) -> str:
    text = printable(text, keep="")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
