"""Turn pydantic's validation errors into one line that names the field and the fix."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparring.config.fields import ANY_ENTRY, config_fields, models_in
from sparring.core import InputError
from sparring.core.text import printable

Location = tuple[int | str, ...]

_MAX_SHOWN = 60
_KEY = "[key]"
"""What pydantic's locations end with if a name of the user's own is wrong."""


def first_problem(error: ValidationError, data: Mapping[str, Any]) -> InputError:
    """Return the first error in ``data``. Unknown fields come first, because they explain missing ones."""
    details = error.errors(include_url=False)
    unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
    return _input_error((unknown or details)[0], data)


def _input_error(detail: ErrorDetails, data: Mapping[str, Any]) -> InputError:
    location = detail["loc"]
    field = dotted(location, data)
    kind = detail["type"]
    if location[-1] == _KEY:
        field = dotted(location[:-2], data)
    if kind == "at_field":
        return InputError(field, detail["ctx"]["problem"], detail["ctx"]["fix"])
    if kind == "extra_forbidden":
        return InputError(field, "there is no such field", _hint_for_unknown(location, field))
    if kind == "missing" and isinstance(location[-1], int):
        field = dotted(location[:-1], data)
        return InputError(field, f"has too few values (got {_shown(detail['input'])})", "Add more")
    if kind == "missing":
        return InputError(field, "is missing", f"Add it: {_what_it_is(location)}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(detail, field)
    shown = _shown(detail["input"])
    if kind in _LIMITS:
        problem, fix, limit = _LIMITS[kind]
        bound = number_text(detail["ctx"][limit])
        return InputError(field, f"{problem.format(bound)} (got {shown})", fix.format(bound))
    if kind == "literal_error":
        return _wrong_choice(field, shown, detail["ctx"]["expected"])
    if kind == "list_type" and isinstance(detail["input"], dict):
        return InputError(field, f"must be a list (got {shown})", f"Write [[{field}]], one for each entry")
    if kind == "list_type" and _holds_tables(location):
        return InputError(field, f"must be a list of tables (got {shown})", f"Write [[{field}]]")
    if kind in _TYPES:
        problem, fix = _TYPES[kind]
        return InputError(field, f"{problem} (got {shown})", fix.format(shown))
    return InputError(field, f"{detail['msg']} (got {shown})", "Correct it")


_LIMITS = {
    "greater_than_equal": ("must be at least {}", "Give {} or more", "ge"),
    "greater_than": ("must be greater than {}", "Give a greater number", "gt"),
    "less_than": ("must be less than {}", "Give a smaller number", "lt"),
    "less_than_equal": ("must be at most {}", "Give {} or less", "le"),
    "too_short": ("must have at least one entry", "Add one", "min_length"),
    "too_long": ("must have at most {} values", "Remove the rest", "max_length"),
    "string_too_short": ("must not be empty", "Write something, or leave it out", "min_length"),
    "string_too_long": ("must have at most {} characters", "Shorten it", "max_length"),
    "control": ("must have no control characters, but has {}", "Remove it", "shown"),
    "long_name": ("has a part of more than {} bytes, too long for a file's name", "Shorten it", "most"),
    "twice": ("names {} twice", "Name it once", "entry"),
}
"""Errors about how large or long a value is: the problem, the fix, and where pydantic has the limit."""


_TYPES = {
    "int_type": ("must be a whole number", "Write digits only, without quotes"),
    "float_type": ("must be a number", "Write it without quotes"),
    "finite_number": ("must be a finite number", "Give an ordinary number"),
    "bool_type": ("must be true or false", "Write one of them, without quotes"),
    "string_type": ("must be text", 'Put it in quotes: "{}"'),
    "string_unicode": ("must be text in UTF-8", "Correct it"),
    "dict_type": ("must be a table", "Give its fields in a section of their own"),
    "string_pattern_mismatch": ("must name a file and a class", 'Write them like "my_file.py:MyClass"'),
    "list_type": ("must be a list", "Put it in brackets: [{}]"),
    "tuple_type": ("must be a list", "Put the values in brackets, with commas between them"),
    "model_type": ("must be a table of fields", "Give its fields in a section of their own"),
    "model_attributes_type": ("must be a table of fields", 'Write it like {{type = "..."}}'),
}


def _wrong_choice(field: str, shown: str, expected: str) -> InputError:
    """Report an impossible choice. ``expected`` is pydantic's list: ``'a', 'b' or 'c'``."""
    choices = expected.replace("'", '"')
    return InputError(field, f"{shown} is not a valid value", f"Use {choices}")


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
    parts = []
    node: Any = data
    for depth, part in enumerate(location):
        is_tag = depth < len(location) - 1 and isinstance(node, dict) and node.get("type", part) == part
        if is_tag and part not in node:
            continue
        parts.append(_cut(str(part)))
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    return ".".join(parts)


def _pattern(location: Location) -> tuple[str, ...]:
    """Return the path of the fields at a location: ``*`` stands for an index, or for a name of the user's."""
    return _general(map(str, location), (field.path for field in config_fields()))


def _general(parts: Iterable[str], paths: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return ``parts`` with ``*`` for a number, and for any part in the place of one in ``paths``."""
    entries = {path[:end] for path in paths for end in range(1, len(path) + 1) if path[end - 1] == ANY_ENTRY}
    pattern: tuple[str, ...] = ()
    for part in parts:
        entry = (*pattern, ANY_ENTRY)
        pattern = entry if part.isdigit() or entry in entries else (*pattern, part)
    return pattern


def _holds_tables(location: Location) -> bool:
    """Return whether the field at a location is a list of tables."""
    pattern = _pattern(location)
    return any(field.path == pattern and models_in(field.info.annotation) for field in config_fields())


def _hint_for_unknown(location: Location, field: str) -> str:
    """Suggest a field of the same table, or of another one, that the user may have meant."""
    *table, name = _pattern(location)
    fields = config_fields()
    siblings = [other.name for other in fields if other.path[:-1] == tuple(table)]
    owners = [other.path[-2] for other in fields if other.written == _written(field)]
    if owners:
        belongs = f'It belongs to type "{owners[0]}"'
        section, _, _ = field.rpartition(".")
        whole = f"""--{section} '{{type = "..."}}' replaces the whole table"""
        return belongs if ANY_ENTRY in table else f"{belongs}. Leave it out; {whole}"
    named = namesakes(name)
    very_close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.85)
    if len(named) == 1 and not very_close:
        return f"Did you mean {named[0]}?"
    close = very_close or difflib.get_close_matches(name, siblings, n=1)
    if close:
        return f"Did you mean {field.removesuffix(name)}{close[0]}?"
    return f"Fields of this section: {', '.join(siblings)}"


def namesakes(name: str) -> list[str]:
    """Return the fields of this name, as a user writes them, but for those that need an entry's index."""
    named = (other.written for other in config_fields() if other.name == name)
    return list(dict.fromkeys(".".join(written) for written in named if _has_one_path(written)))


def _written(field: str) -> tuple[str, ...]:
    """Return the path of a field that is named as :func:`dotted` does."""
    return _general(field.split("."), (other.written for other in config_fields()))


def _has_one_path(path: tuple[str, ...]) -> bool:
    """Return whether a field can be named without an entry's index or the program's type."""
    return ANY_ENTRY not in path and not (path[0] == "program" and len(path) > 1)


def _what_it_is(location: Location) -> str:
    """Return the help text of a field."""
    pattern = _pattern(location)
    texts = [field.info.description or "" for field in config_fields() if field.path == pattern]
    return texts[0] if texts else "it has no default"


def number_text(value: float | str) -> str:
    """Return a bound as it is written: whole numbers with all their digits."""
    if isinstance(value, float):
        return f"{value:g}"
    return _cut(str(value))


def _shown(value: Any) -> str:
    """Return a value as TOML writes it, cut to 60 characters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_MAX_SHOWN:
        return "a number of more than 60 digits"
    return _cut(
        str(value) if isinstance(value, float) else json.dumps(value, default=str, ensure_ascii=False)
    )


def _cut(text: str) -> str:
    text = printable(text, keep="")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
