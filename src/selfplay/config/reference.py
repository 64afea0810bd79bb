"""Generate docs/configuration.md from the fields: ``python -m selfplay.config.reference > FILE``."""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from selfplay.config.config import Config
from selfplay.config.fields import (
    config_fields,
    is_choice_of_models,
    is_list,
    is_table_by_name,
    models_in,
    tags_of,
    type_text,
)
from selfplay.config.loading import preset_names
from selfplay.config.problems import number_text

_HEAD = """# Configuration

A configuration is a TOML file or the name of a bundled preset ({presets}).
Every field except `envs` has a default. On the command line, a field is set by its dotted name:
`selfplay train quickstart --learning.steps 20 --envs.0.template default`.
`selfplay train CONFIG --dry-run` prints the configuration of a run without what has no effect, checks it,
plays one episode of everything with made-up answers, and reads the model's files if they are here.

The path of a model's directory, or of a class of your own, is relative to the file that names it and,
on the command line, to the working directory. A run stores absolute paths, so it resumes from anywhere.

This page is generated from the source: `python -m selfplay.config.reference > docs/configuration.md`.
"""


def config_reference() -> str:
    """Return a Markdown page that lists every field with its type, its default and its description."""
    presets = ", ".join(f"`{name}`" for name in preset_names())
    return "\n".join([_HEAD.format(presets=presets), *_section(Config, "")])


def _section(model: type[BaseModel], path: str, *, is_choice: bool = False) -> list[str]:
    """Return a table of the plain fields, then a section for each field that holds tables."""
    prefix = f"{path}." if path else ""
    plain = {name: info for name, info in model.model_fields.items() if not models_in(info.annotation)}
    nested = {name: info for name, info in model.model_fields.items() if models_in(info.annotation)}
    lines = _table(plain, is_choice) if plain else []
    for name, info in nested.items():
        lines += _subsection(f"{prefix}{name}", info)
    return lines


def _subsection(path: str, info: FieldInfo) -> list[str]:
    name = f"{path}.NAME" if is_table_by_name(info.annotation) else path
    heading = f"`[[{path}]]`" if is_list(info.annotation) else f"`[{name}]`"
    if is_choice_of_models(info.annotation):
        first = _first_with(models_in(info.annotation))
        if path != first:
            return [
                f"## {heading}",
                "",
                f"{_text(info.description)} Its fields are those of `[{first}]`.",
                "",
            ]
        return [f"## {heading}", "", *_choices(path, info)]
    (model,) = models_in(info.annotation)
    text = _text(model.__doc__)
    if is_list(info.annotation):
        text = f"{text} {_text(info.description)}"
    return [f"## {heading}", "", text, "", *_section(model, name)]


def _first_with(models: list[type[BaseModel]]) -> str:
    """Return the path of the first field that is a choice of these tables."""
    fields = (field for field in config_fields() if models_in(field.info.annotation) == models)
    return ".".join(next(fields).written)


def _choices(path: str, info: FieldInfo) -> list[str]:
    """Return a table for each type of entry."""
    text = f"{_text(info.description)} Default: {_default(info)}. Each entry has one of these types."
    lines = [text, ""]
    needs_type = not isinstance(info.default, BaseModel)
    for model in models_in(info.annotation):
        names = " or ".join(f"`{tag}`" for tag in tags_of(model))
        lines += [f"**{names}**: {_text(model.__doc__)}", "", *_section(model, path, is_choice=needs_type)]
    return lines


def _table(fields: dict[str, FieldInfo], is_choice: bool) -> list[str]:
    rows = []
    for name, info in fields.items():
        default = "required" if is_choice and name == "type" else _default(info)
        rows.append(f"| `{name}` | {_type(info)} | {default} | {_text(info.description)} |")
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""]


def _type(info: FieldInfo) -> str:
    """Return the type with its bounds."""
    bounds = []
    for bound in info.metadata:
        for attribute, words in _BOUNDS.items():
            if hasattr(bound, attribute):
                bounds.append(f"{words} {number_text(getattr(bound, attribute))}")
    return ", ".join([type_text(info.annotation), *bounds])


_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default is None:
        return "none"
    return f"`{_toml(info.default)}`"


def _toml(value: Any) -> str:
    """Return a default as TOML writes it."""
    if isinstance(value, BaseModel):
        given = {name: getattr(value, name) for name in type(value).model_fields}
        fields = (f"{name} = {_toml(one)}" for name, one in given.items() if one is not None)
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(entry) for entry in value)}]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


if __name__ == "__main__":
    print(config_reference(), end="")
