"""All that is wrong with a configuration: wrong fields, and broken rules between those that are right."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from sparring.config.base import FIELDS_ONLY, Settings
from sparring.config.config import Config
from sparring.config.facts import joined, sections_of
from sparring.config.problems import problems_in, wrong_places
from sparring.core import InputError

Place = tuple[int | str, ...]


def validated(data: dict[str, Any]) -> Config:
    """Return the configuration in nested tables.

    Raises:
        InputError: the first of ``problems_with``.
    """
    try:
        return Config.model_validate(data)
    except (ValidationError, InputError):
        raise problems_with(data)[0] from None


def known_part(data: dict[str, Any]) -> Config:
    """Return the configuration in nested tables without the fields that do not exist.

    Raises:
        InputError: something else is wrong too.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        rest = deepcopy(data)
        for place, is_unknown in wrong_places(error, rest):
            if is_unknown:
                _take_out(rest, place)
        return validated(rest)


def problems_with(data: dict[str, Any]) -> list[InputError]:
    """Return what is wrong with a configuration, one error a field.

    First are the fields that are wrong by themselves, then the rules between fields that are broken. A rule
    that reads a wrong field is left out.
    """
    try:
        config, problems = Config.model_validate(data, context=FIELDS_ONLY), []
    except ValidationError as error:
        problems = problems_in(error, data)
        config = _what_is_right(data, error)
    return problems + _broken_rules(config, {one.field for one in problems})


def _what_is_right(data: dict[str, Any], error: ValidationError) -> Config:
    """Return the configuration without what is wrong: to read such a field raises an AttributeError."""
    rest, taken = deepcopy(data), list[tuple[Place, bool]]()
    while True:
        for place, is_unknown in wrong_places(error, rest):
            if out := _take_out(rest, place):
                taken.append((out, is_unknown and out == place))
        try:
            config = Config.model_validate(rest, context=FIELDS_ONLY)
        except ValidationError as another:
            error = another
            continue
        for place, is_unknown in taken:
            _hide(config, place, and_unset=is_unknown)
        return config


def _take_out(data: dict[str, Any], place: Place) -> Place:
    """Take the innermost entry of a table at a place out of the data; return where that was."""
    node: Any = data
    table, end = data, 0
    for depth, part in enumerate(place):
        if isinstance(node, dict) and part in node:
            table, end = node, depth + 1
        elif not (isinstance(node, list) and isinstance(part, int) and part < len(node)):
            break
        node = node[part]
    if end:
        del table[str(place[end - 1])]
    return place[:end]


def _hide(config: Config, place: Place, *, and_unset: bool) -> None:
    """Take the field at a place away from its section.

    ``and_unset`` takes away those that are not set too, because an unknown field may have meant one of them.
    """
    section: Settings = config
    name = ""
    node: Any = config
    for part in place:
        if isinstance(node, Settings):
            section, name = node, str(part)
            node = vars(section).get(name)
        elif isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            break
    unset = type(section).model_fields.keys() - section.model_fields_set if and_unset else ()
    for one in (name, *unset):
        vars(section).pop(one, None)


def _broken_rules(config: Config, wrong: set[str]) -> list[InputError]:
    """Return the rules that are broken at fields other than ``wrong``, those within sections first."""
    (_, whole), *sections = sections_of("", config)
    found: dict[str, InputError] = {}
    for place, section in (*sections, ("", whole)):
        try:
            rules = [*section.rules()]
        except AttributeError:  # they depend on what is wrong
            continue
        for rule in rules:
            problem = None
            try:
                rule()
            except InputError as error:
                problem = error
            except PydanticCustomError as error:
                context = error.context or {}
                problem = InputError(joined(place, context["field"]), context["problem"], context["fix"])
            except Exception:  # it reads what is wrong, by itself or by an earlier rule
                if not found and not wrong:
                    raise
            if problem is not None and problem.field not in wrong:
                found.setdefault(problem.field, problem)
    return [*found.values()]
