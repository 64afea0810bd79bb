"""The JSON Schema of a configuration, by which editors complete and check TOML."""

from types import NoneType
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sparring.config.algorithms import PythonAlgorithm, with_type
from sparring.config.config import Config
from sparring.config.fields import config_fields, is_choice_of_models, models_in, tags_of
from sparring.config.rewards import CreditSettings, PythonTransform
from sparring.config.toml_files import EXTENDS, OF_EXTENDS
from sparring.core.own_code import CLASS_PATH

_NAMED_BY_TYPE = (PythonAlgorithm, PythonTransform, CreditSettings)
"""Tables whose ``type`` may name a class of one's own: those that ``with_own_type`` completes."""


def config_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a configuration's file, or of a recipe.

    It knows the fields, their types, bounds, choices, defaults and descriptions. It accepts every valid
    configuration; the rules between fields are known to ``sparring train --validate`` only.
    """
    schema = Config.model_json_schema(schema_generator=_Schema)
    schema["properties"] = {EXTENDS: {"type": "string", "description": OF_EXTENDS}, **schema["properties"]}
    definitions = schema["$defs"]
    for field in config_fields():
        if is_choice_of_models(field.info.annotation):
            for model in models_in(field.info.annotation):
                _require_type(definitions[model.__name__], tags_of(model))
    for kind in _NAMED_BY_TYPE:
        _allow_own_class(definitions[kind.__name__])
    return {"$schema": _Schema.schema_dialect, "title": "A run of sparring", **_tidied(schema)}


class _Schema(GenerateJsonSchema):
    """TOML has no null: a field without a value is left out."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        inner = super().default_schema(schema)
        if isinstance(inner.get("default"), dict | NoneType):
            inner.pop("default", None)  # the fields of a table have their own
        return inner

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        return {"oneOf": super().tagged_union_schema(schema)["oneOf"]}


def _require_type(definition: dict[str, Any], tags: list[str]) -> None:
    """Tell the tables of a choice apart by their ``type``, but for the one that has none of its own."""
    if with_type({})["type"] not in tags:
        definition["required"] = [*dict.fromkeys(["type", *definition.get("required", ())])]


def _allow_own_class(definition: dict[str, Any]) -> None:
    """Let ``type`` name the class, or ``path`` alone: whichever is there says that it is one's own."""
    kind, named = definition["properties"]["type"], {"type": "string", "pattern": CLASS_PATH}
    about = {name: kind.pop(name) for name in ("description", "default") if name in kind}
    definition["properties"]["type"] = {"anyOf": [kind, named], **about}
    if "path" in definition.pop("required", ()):
        by_type = {"required": ["type"], "properties": {"type": named}}
        definition["anyOf"] = [{"required": ["path"]}, by_type]


def _tidied(schema: Any) -> Any:
    """Return a schema without titles, which repeat names, and its descriptions in one line."""
    if isinstance(schema, list):
        return [_tidied(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {
        name: _tidied(one) for name, one in schema.items() if not (name == "title" and isinstance(one, str))
    }
    if isinstance(text := tidied.get("description"), str):
        tidied["description"] = " ".join(text.split())
    return tidied
