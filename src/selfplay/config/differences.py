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
