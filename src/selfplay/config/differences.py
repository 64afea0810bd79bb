"""In which fields two configurations differ."""

from typing import Any

from selfplay.config.config import Config

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


def differing_fields(one: Config, other: Config) -> list[str]:
    """Return the dotted names of the fields whose values differ, or that only one of them has."""
    first, second = (flat_fields(config.model_dump()) for config in (one, other))
    absent = object()
    names = dict.fromkeys([*first, *second])
    return [name for name in names if first.get(name, absent) != second.get(name, absent)]


def differences_text(one: Config, other: Config) -> str:
    """Return the first fields in which two configurations differ, for an error."""
    names = differing_fields(one, other)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
