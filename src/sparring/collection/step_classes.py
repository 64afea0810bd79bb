"""Steps as plain data and back, each as the class that it was of."""

from typing import Any

import msgspec

from sparring.core import InputError, Step

CLASS = "class"
"""The key of a step that is of a subclass, for its name."""


def plain_groups(groups: list[list[Step]]) -> list[list[dict[str, Any]]]:
    """Return the steps as JSON-able data, with the names of classes other than ``Step``."""
    plain: list[list[dict[str, Any]]] = msgspec.to_builtins(groups, str_keys=True)
    for steps, rows in zip(groups, plain, strict=True):
        for step, row in zip(steps, rows, strict=True):
            if type(step) is not Step:
                row[CLASS] = _name_of(type(step))
    return plain


def groups_of(plain: list[list[Any]]) -> list[list[Step]]:
    """Return the steps of :func:`plain_groups`.

    A class is one that the program has defined. Nothing is imported for it, because a checkpoint's content is
    not trusted.

    Raises:
        InputError: the program has no such class.
    """
    classes = {_name_of(one): one for one in _subclasses(Step)}

    def step_of(row: dict[str, Any]) -> Step:
        name = row.get(CLASS)
        if name is not None and name not in classes:
            problem = f"its buffer has steps of {name}, which this program does not define"
            raise InputError("checkpoint", problem, "Import the module of that class before resuming.")
        fields = {key: value for key, value in row.items() if key != CLASS}
        return msgspec.convert(fields, Step if name is None else classes[name])

    if not any(CLASS in row for rows in plain for row in rows):
        return msgspec.convert(plain, list[list[Step]])
    return [[step_of(row) for row in rows] for rows in plain]


def _name_of(kind: type[Step]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _subclasses(kind: type[Step]) -> list[type[Step]]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]
