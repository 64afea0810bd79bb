"""Generate docs/configuration.md from the fields: ``python tests/configuration_page.py > FILE``."""

from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparring.config.base import Settings
from sparring.config.config import Config
from sparring.config.fields import (
    ANY_ENTRY,
    config_fields,
    is_choice_of_models,
    is_list,
    is_table_by_name,
    models_in,
    tags_of,
)
from sparring.config.loading import preset_names
from sparring.config.problems import number_text
from sparring.config.toml_files import toml_text

_HEAD = """# Configuration

A configuration is a TOML file or the name of a bundled preset ({presets}).
Every field except `envs` has a default. On the command line, a field is set by its dotted name:
`sparring train quickstart --learning.steps 20 --envs.0.template default`.
`sparring train CONFIG --dry-run` prints the configuration of a run without what has no effect, checks it,
plays one episode of everything with made-up answers, and reads the model's files if they are here.
`--validate` only says what is wrong, in a second or two; with `--json` for programs ([errors](errors.md)).

Editors complete and check a configuration by its JSON Schema, which this command writes:
`sparring config schema > sparring.schema.json`. For Taplo and the extension Even Better TOML, the first line
of a file names it: `#:schema ./sparring.schema.json`. Only `--validate` knows the rules between fields.

A file whose first line is `extends = "kuhn"` is laid over this preset, or over a file beside it: fields
replace fields, tables are laid over tables of the same `type`, and lists replace whole lists.
`sparring config PRESET` prints the file of a preset, also of [a paper](papers.md).

The path of a model's directory, or of a class of your own, is relative to the file that names it and,
on the command line, to the working directory. A run stores absolute paths, so it resumes from anywhere.

This page is generated from the source: `python tests/configuration_page.py > docs/configuration.md`.
"""


def config_reference() -> str:
    """Return a Markdown page that lists every field with its type, its default and its description."""
    presets = ", ".join(f"`{name}`" for name in preset_names() if "/" not in name)
    return "\n".join([_HEAD.format(presets=presets), *_section(Config, "")])


def _section(model: type[BaseModel], path: str) -> list[str]:
    prefix = f"{path}." if path else ""
    lines = _table(model.model_fields)
    for name, info in _with_tables(model).items():
        lines += _subsection(f"{prefix}{name}", info)
    return lines


def _with_tables(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {name: info for name, info in model.model_fields.items() if models_in(info.annotation)}


def _subsection(path: str, info: FieldInfo) -> list[str]:
    name = f"{path}.NAME" if is_table_by_name(info.annotation) else path
    heading = f"## `[[{path}]]`" if is_list(info.annotation) else f"## `[{name}]`"
    models = models_in(info.annotation)
    first = _first_with(models)
    if path != first:
        return [heading, "", f"{_text(info.description)} It has the fields of `[{first}]`.", ""]
    if is_choice_of_models(info.annotation):
        return [heading, "", *_choices(path, info)]
    text = _text(models[0].__doc__)
    if is_list(info.annotation):
        text = f"{text} {_text(info.description)}"
    return [heading, "", text, "", *_section(models[0], name)]


def _first_with(models: list[type[BaseModel]]) -> str:
    fields = (field for field in config_fields() if models_in(field.info.annotation) == models)
    return ".".join(part for part in next(fields).written if part != ANY_ENTRY)


def _choices(path: str, info: FieldInfo) -> list[str]:
    """Return a table for the fields that types share, one for each type's own, and what these hold."""
    models = models_in(info.annotation)
    needs_type = not isinstance(info.default, BaseModel)
    required = "required and " if needs_type else ""
    text = f"{_text(info.description)} Default: {_default(info)}. `type` is {required}one of these."
    lines = [text, ""]
    bases = [base for base in _bases(models) if _table(_own(base))]
    for base in bases:
        tags = [f"`{tag}`" for model in models if issubclass(model, base) for tag in tags_of(model)]
        lines += [f"Fields of {', '.join(tags[:-1])} and {tags[-1]}:", "", *_table(_own(base))]
    inner: dict[str, list[str]] = {}
    for model in models:
        names = " or ".join(f"`{tag}`" for tag in tags_of(model))
        shared = {name for base in bases if issubclass(model, base) for name in _own(base)}
        own = {name: one for name, one in model.model_fields.items() if name not in shared - {*_own(model)}}
        lines += [f"**{names}**: {_text(model.__doc__)}", "", *_table(own, needs_type)]
        for name, one in _with_tables(model).items():
            inner.setdefault(name, _subsection(f"{path}.{name}", one))
    return lines + [line for section in inner.values() for line in section]


def _bases(models: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """Return the classes from which several of these inherit, a base before what is derived from it."""
    every = dict.fromkeys(base for model in models for base in reversed(model.__mro__))
    return [
        base
        for base in every
        if issubclass(base, Settings) and sum(issubclass(model, base) for model in models) > 1
    ]


def _own(model: type[BaseModel]) -> dict[str, FieldInfo]:
    declared = get_annotations(model)
    return {name: info for name, info in model.model_fields.items() if name in declared}


def _table(fields: dict[str, FieldInfo], needs_type: bool = False) -> list[str]:
    """Return a table of the plain fields, without a ``type`` that can only be one."""
    rows = []
    for name, info in fields.items():
        if not models_in(info.annotation) and not (name == "type" and _is_fixed(info)):
            default = "required" if name == "type" and needs_type else _default(info)
            rows.append(f"| `{name}` | {_type(info)} | {default} | {_text(info.description)} |")
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""] if rows else []


def _is_fixed(info: FieldInfo) -> bool:
    """Return whether a ``type`` only tells a table from others: it names it, or is a base's."""
    return len(get_args(info.annotation)) == 1 or info.annotation is str


def _type(info: FieldInfo) -> str:
    bounds = []
    for bound in info.metadata:
        for attribute, words in _BOUNDS.items():
            if hasattr(bound, attribute):
                bounds.append(f"{words} {number_text(getattr(bound, attribute))}")
    return ", ".join([_type_text(info.annotation), *bounds])


_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default is None:
        return "none"
    return f"`{toml_text(_plain(info.default))}`"


def _plain(value: Any) -> Any:
    """Return sections as tables, without the fields that have their default."""
    if isinstance(value, BaseModel):
        given = {name: getattr(value, name) for name in type(value).model_fields}
        default = {name: info.default for name, info in type(value).model_fields.items()}
        return {name: _plain(one) for name, one in given.items() if name == "type" or one != default[name]}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _type_text(annotation: Any) -> str:
    """Describe a field's type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(parts[0])
    if origin is Literal:
        return ", ".join(f'`"{part}"`' for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in parts if part is not NoneType)
    if origin is list:
        return f"list of {_PLURALS.get(_bare(parts[0]), 'tables')}"
    if origin is tuple:
        return f"list of {len(parts)} {_PLURALS[_bare(parts[0])]}"
    return _NAMES.get(annotation, "table")


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


_NAMES: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_PLURALS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


if __name__ == "__main__":
    print(config_reference(), end="")
