"""Facts about single fields, which stand beside them in ``Annotated``, and what reads them."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from sparring.config.base import Settings
from sparring.core import InputError
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.env_id import with_files
from sparring.core.errors import check_installed
from sparring.core.own_code import is_class_path, with_file


@dataclass(frozen=True)
class Only:
    """The field has an effect only while ``other`` has one of ``values``; without values, while that is set.

    ``other`` is a field of the same section, or else one of the whole configuration by its dotted name.
    """

    other: str
    values: tuple[Any, ...] = ()
    refused: bool = False
    """Whether it is an error to set the field while it has no effect."""
    why: str = ""
    """The reason in words, if the value of ``other`` says too little."""
    fix: str = "Leave one of the two out"
    """What to do instead, beside a ``why``."""

    def holds(self, value: Any) -> bool:
        """Whether ``other`` has such a value; what a class of your own uses is not known."""
        if not self.values:
            return bool(value)
        return value in self.values or (isinstance(value, str) and is_class_path(value))


@dataclass(frozen=True)
class Needs:
    """With one of ``values``, or if it is set, the field needs the package of an extra."""

    package: str
    extra: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Relative:
    """The field names a file relative to the directory of the file in which it is written.

    ``with_file`` takes a text of the field and returns it with another path of the file.
    """

    with_file: Callable[[str, Callable[[str], str]], str]


def _with_adapter(text: str, change: Callable[[str], str]) -> str:
    """A name without a directory is a run in ``runs``, unless it is that of a policy's file; a model behind
    an API is no file."""
    if "@http" in text:
        return text
    return change(text if "/" in text or text.endswith((".json", ".jsonl")) else f"runs/{text}")


def _with_model(text: str, change: Callable[[str], str]) -> str:
    path = change(text)
    is_here = os.path.isdir(path) or (text.endswith(".gguf") and os.path.isfile(path))
    return path if text not in ("", BUNDLED_MODEL) and is_here else text


CLASS_FILE = Relative(with_file)
ENV_ID = Relative(with_files)
FILE = Relative(lambda text, change: change(text))
ADAPTER = Relative(_with_adapter)
MODEL = Relative(_with_model)
FOR_GAMES = Only("program", (None,), refused=True, why="is for games, but [program] replaces them")
FOR_PROGRAMS = Only(
    "program", refused=True, why="is for the roles of a program, but games are played", fix="Leave it out"
)
Fact = TypeVar("Fact", Only, Needs)


def without_effect_by_facts(config: Settings) -> Iterator[tuple[str, str]]:
    """Yield each field that has no effect and the reason.

    Raises:
        InputError: it is set, and that is refused.
    """
    for where in facts_of(config, Only):
        field, reason = reason_in_vain(config, *where)
        if reason:
            yield field, reason


def reason_in_vain(config: Settings, place: str, section: Settings, name: str, fact: Only) -> tuple[str, str]:
    """Return a field of a section and why it has no effect; an empty reason if it has.

    Raises:
        InputError: it is set in vain, and that is refused.
    """
    is_own = fact.other in type(section).model_fields
    value = reduce(getattr, fact.other.split("."), section if is_own else config)
    field, other = joined(place, name), joined(place, fact.other) if is_own else fact.other
    if fact.holds(value):
        return field, ""
    reason = fact.why or f"{other} is {json.dumps(value)}"
    if fact.refused and getattr(section, name) != type(section).model_fields[name].default:
        wanted = f"Set that to {json.dumps(fact.values[0])}" if len(fact.values) == 1 else "Change that"
        problem = fact.why or f"has no effect, because {reason}"
        raise InputError(field, problem, fact.fix if fact.why else f"{wanted}, or leave this out")
    return field, reason


def check_packages(settings: Settings, root: str = "") -> None:
    """Raise an InputError if a package that a field needs is not installed.

    ``root`` is the name of the section; empty for the whole configuration.
    """
    for place, section, name, fact in facts_of(settings, Needs, root):
        value = getattr(section, name)
        is_needed = value in fact.values if fact.values else bool(value)
        if is_needed:
            check_installed(joined(place, name), fact.extra, fact.package)


def facts_of(
    settings: Settings, kind: type[Fact], root: str = ""
) -> Iterator[tuple[str, Settings, str, Fact]]:
    """Yield the facts of every field with the section's name, the section and the field's name."""
    for place, section in sections_of(root, settings):
        for name, info in type(section).model_fields.items():
            for fact in info.metadata:
                if isinstance(fact, kind):
                    yield place, section, name, fact


def sections_of(place: str, settings: Any) -> Iterator[tuple[str, Settings]]:
    """Yield the settings at a place, and all sections within them, each with its place."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(settings, Settings):
        yield place, settings
        inner = settings
    elif isinstance(settings, dict):
        inner = settings.items()
    elif isinstance(settings, list):
        inner = enumerate(settings)
    for name, value in inner:
        yield from sections_of(joined(place, name), value)


def joined(place: str, name: Any) -> str:
    """Return the dotted name of what is at a place."""
    return f"{place}.{name}" if place else str(name)
