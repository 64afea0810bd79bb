"""The base of every section of the configuration, and the kinds of texts and lists that its fields hold."""

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from sparring.core.own_classes import CLASS_PATH, is_class_path

_CONTROL = ("Cc", "Zl", "Zp")
"""Unicode's categories of control characters, and of the separators of lines and paragraphs."""
_LONGEST_FILE_NAME = 255
"""In bytes, on every usual file system."""


def at_field(problem: str, fix: str) -> PydanticCustomError:
    """Return the error of a validator that pydantic reports at its field, wherever the user wrote that."""
    return PydanticCustomError("at_field", "{problem}", {"problem": problem, "fix": fix})


def _one_line(text: str) -> str:
    return _without_control(text, "")


def _several_lines(text: str) -> str:
    return _without_control(text, "\n\t")


def _without_control(text: str, allowed: str) -> str:
    for character in text:
        if unicodedata.category(character) in _CONTROL and character not in allowed:
            raise PydanticCustomError("control", "{shown}", {"shown": f"U+{ord(character):04X}"})
    return text


def _path(text: str) -> str:
    if any(len(part.encode()) > _LONGEST_FILE_NAME for part in text.split("/")):
        raise PydanticCustomError("long_name", "{most}", {"most": _LONGEST_FILE_NAME})
    return _one_line(text)


def _distinct(entries: list[str]) -> list[str]:
    seen = set()
    for entry in entries:
        if entry in seen:
            raise PydanticCustomError("twice", "{entry}", {"entry": entry})
        seen.add(entry)
    return entries


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
"""A name of a policy, a role, a model's layer."""
Line = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_one_line)]
"""A text in one line, such as an environment's id with parameters."""
FilePath = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_path)]
"""A file, a directory, or a name that may be one."""
Words = Annotated[str, Field(min_length=1, max_length=8000), AfterValidator(_several_lines)]
"""A text that a model reads or writes, which may have several lines."""
ClassPath = Annotated[FilePath, Field(pattern=CLASS_PATH)]
"""The file and the name of a class of your own."""
Names = Annotated[list[Name], Field(max_length=1000), AfterValidator(_distinct)]
"""Names that differ."""
Texts = Annotated[list[Words], Field(max_length=10_000), AfterValidator(_distinct)]
"""Texts that differ."""


def with_own_type(table: Any) -> Any:
    """Return a table whose ``type`` or ``path`` names a class of your own as one of type ``python``."""
    if not isinstance(table, dict):
        return table
    kind = table.get("type")
    if isinstance(kind, str) and is_class_path(kind) and "path" not in table:
        return {**table, "type": "python", "path": kind}
    return {"type": "python", **table} if "path" in table else table


class Settings(BaseModel):
    """Base of every section: unknown fields are errors, values are not converted, docstrings are help texts.

    Every number, text and list has bounds, generous but finite. Validators check conditions that involve
    several fields; they raise ``InputError``.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
