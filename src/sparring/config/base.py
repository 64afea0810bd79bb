"""The base of every section of the configuration, and the kinds of texts and lists that its fields hold."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from sparring.core.adapters import NAMES_OF_POLICIES, is_policy_name
from sparring.core.own_code import CLASS_PATH, is_class_path

Rule = Callable[[], object]
FIELDS_ONLY = "fields only"
"""The context of a validation that leaves out the rules between fields."""
_CONTROL = ("Cc", "Zl", "Zp")
"""Unicode's categories of control characters, and of the separators of lines and paragraphs."""
_LONGEST_FILE_NAME = 255
"""In bytes, on every usual file system."""


def at_field(problem: str, fix: str, field: str = "", *, shows: bool = False) -> PydanticCustomError:
    """Return the error of a validator, which is reported where the user wrote the value.

    ``field`` is a field of the section that was validated; with ``shows``, the line repeats the value.
    """
    return PydanticCustomError(
        "at_field", "{problem}", {"problem": problem, "fix": fix, "field": field, "shows": shows}
    )


def _one_line(text: str) -> str:
    return _without_control(text, "")


def _several_lines(text: str) -> str:
    return _without_control(text, "\n\t")


def _without_control(text: str, allowed: str) -> str:
    for character in text:
        if unicodedata.category(character) in _CONTROL and character not in allowed:
            problem = f"must have no control characters, but has U+{ord(character):04X}"
            raise at_field(problem, "Remove it", shows=True)
    return text


def _policy_name(name: str) -> str:
    if not is_policy_name(name):
        raise at_field(f"{name!r} is not a valid name", NAMES_OF_POLICIES)
    return name


def _path(text: str) -> str:
    if any(len(part.encode()) > _LONGEST_FILE_NAME for part in text.split("/")):
        problem = f"has a part of more than {_LONGEST_FILE_NAME} bytes, too long for a file's name"
        raise at_field(problem, "Shorten it", shows=True)
    return _one_line(text)


def _distinct(entries: list[str]) -> list[str]:
    twice = [entry for entry, count in Counter(entries).items() if count > 1]
    if twice:
        raise at_field(f"names {twice[0][:60]!r} twice", "Name it once", shows=True)
    return entries


MOST_SEED = 2**53
"""The largest seed: larger numbers are not exact in JSON."""
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
PolicyName = Annotated[Name, AfterValidator(_policy_name)]
"""A name under which an adapter is trained or served."""
Names = Annotated[list[Name], Field(max_length=1000), AfterValidator(_distinct)]
"""Names that differ."""
Texts = Annotated[list[Words], Field(max_length=10_000), AfterValidator(_distinct)]
"""Texts that differ."""

_TagPair = Annotated[list[Words], Field(min_length=2, max_length=2), AfterValidator(_distinct)]
ThoughtTags = Literal["auto", "none"] | _TagPair
"""How thoughts are told from what is said: by the known tags, not at all, or by the texts around them."""


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

    Every number, text and list has bounds, generous but finite.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def rules(self) -> Iterable[Rule]:
        """Return the rules between fields: functions that raise what ``at_field`` returns, or an InputError.

        A rule may rely on those before it. Where some fields are wrong, they are not there to be read.
        """
        return ()

    @model_validator(mode="after")
    def _keeps_rules(self, info: ValidationInfo) -> Self:
        if info.context is not FIELDS_ONLY:
            for rule in self.rules():
                rule()
        return self


Sharing = Literal["shared", "isolated"]


class ProgramSettings(Settings):
    """Base of all programs."""

    type: Name
    """Names the kind of program."""
    policies: Sharing | None = None
    """`shared`: all roles that are trained have the policy `default`. `isolated`: each has one of its own,
    with its name in lower case. By default as the program's other settings say; `[roles.NAME]` has the last
    word."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.type]
