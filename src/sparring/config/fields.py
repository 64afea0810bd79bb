"""Every field of the configuration by its path, for help texts and for hints in errors."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparring.config.config import Config

ANY_ENTRY = "*"


@dataclass(frozen=True)
class ConfigField:
    """One field.

    ``path`` leads from the root to the field. It consists of field names, ``*`` for any entry of a list or of
    a table of tables and, where entries are distinguished by their ``type``, that type. ``written`` is the
    path without such types, as a user writes it.
    """

    path: tuple[str, ...]
    written: tuple[str, ...]
    info: FieldInfo

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]


@lru_cache(maxsize=1)
def config_fields() -> tuple[ConfigField, ...]:
    """Return every field in the order of the source, each section before its contents."""
    return tuple(_fields_of(Config, (), ()))


@lru_cache(maxsize=1)
def fields_by_path() -> dict[tuple[str, ...], list[ConfigField]]:
    """Return the fields at each path: several where types of one table share a name."""
    fields: dict[tuple[str, ...], list[ConfigField]] = {}
    for field in config_fields():
        fields.setdefault(field.path, []).append(field)
    return fields


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the settings classes of a field: a single one, a list's, or those of a tagged union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def tags_of(model: type[BaseModel]) -> list[str]:
    """Return the possible values of a class's ``type``."""
    return list(get_args(model.model_fields["type"].annotation))


def is_list(annotation: Any) -> bool:
    """Return whether a field holds a list."""
    return get_origin(annotation) is list


def is_table_by_name(annotation: Any) -> bool:
    """Return whether a field holds tables under names of the user's own."""
    return get_origin(annotation) is dict and bool(models_in(annotation))


def is_choice_of_models(annotation: Any) -> bool:
    """Return whether the entries of a field are distinguished by their ``type``."""
    return len(models_in(annotation)) > 1


def _fields_of(
    model: type[BaseModel], path: tuple[str, ...], written: tuple[str, ...]
) -> Iterator[ConfigField]:
    for name, info in model.model_fields.items():
        field = ConfigField((*path, name), (*written, name), info)
        yield field
        several = is_list(info.annotation) or is_table_by_name(info.annotation)
        entry = (ANY_ENTRY,) if several else ()
        for inner in models_in(info.annotation):
            for tag in _tags_in_path(inner, info.annotation):
                yield from _fields_of(inner, (*field.path, *entry, *tag), (*field.written, *entry))


def _tags_in_path(model: type[BaseModel], annotation: Any) -> list[tuple[str, ...]]:
    """Return what distinguishes the entries of one class in a path: each of its types, or nothing."""
    return [(tag,) for tag in tags_of(model)] if is_choice_of_models(annotation) else [()]
