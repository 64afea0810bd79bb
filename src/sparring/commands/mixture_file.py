"""The file of a mixture: its members' adapters and weights, and how they play. It is a model's name too."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from sparring.config.base import Settings
from sparring.config.model import ModelSettings
from sparring.config.play import EnvSettings
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, is_reserved


@dataclass(frozen=True)
class MixtureMember:
    """A member of a mixture that may be drawn; without an adapter it is the base model."""

    name: str
    adapter: Path | None
    weight: float


class MixtureEntry(Settings):
    """A member in the file. The adapter's directory is relative to the file; ``None`` is the base model."""

    name: str
    adapter: str | None = None
    weight: float = Field(ge=0)


class MixtureContent(Settings):
    """The content of the file."""

    model: ModelSettings = ModelSettings()
    max_tokens: int = Field(default=16, ge=1)
    envs: tuple[EnvSettings, ...] = Field(default=(), strict=False)
    members: list[MixtureEntry] = Field(min_length=1)

    def to_bytes(self) -> bytes:
        """Return the file."""
        return f"{self.model_dump_json(indent=1, exclude_none=True)}\n".encode()


def read_mixture(file: Path) -> tuple[MixtureContent, tuple[MixtureMember, ...]]:
    """Read a file; return its content and the members whose weight is not 0.

    Raises:
        InputError: it is no such file, no member has a weight, two have one name, or an adapter is missing.
    """
    try:
        content = MixtureContent.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        problem = f"is not the file of a mixture ({type(error).__name__})"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            problem = f"is not the file of a mixture: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(str(file), problem, "Name one that sparring psro wrote") from error
    names = [one.name for one in content.members]
    wrong = [name for name in names if not re.fullmatch(r"[\w-]+", name) or is_reserved(name)]
    if wrong or len({*names}) < len(names):
        problem = f"{(wrong or names)[0]!r} is not a valid name, or two members have the same"
        raise InputError(str(file), problem, "Use letters, digits, _ and -, once each")
    members = tuple(_member(file, one) for one in content.members if one.weight)
    if not members:
        raise InputError(str(file), "no member has a weight above 0", "Correct it")
    return content, members


def _member(file: Path, entry: MixtureEntry) -> MixtureMember:
    if entry.adapter is None:
        return MixtureMember(entry.name, None, entry.weight)
    adapter = file.parent / entry.adapter
    if not all((adapter / part).is_file() for part in (ADAPTER_CONFIG, ADAPTER_FILE)):
        raise InputError(str(file), f"{adapter} is not an adapter", "Put it back, or correct the file")
    return MixtureMember(entry.name, adapter, entry.weight)
