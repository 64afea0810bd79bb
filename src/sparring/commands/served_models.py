"""The models that a server has from its start, and their names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from sparring.commands.model_source import ModelSource
from sparring.core.adapters import ADAPTER_CONFIG, BASE, STATE_FILE, TRAINED
from sparring.run.run_directory import CHECKPOINT_PREFIX
from sparring.run.run_names import last_part


@dataclass(frozen=True)
class ServedModels:
    """See the module.

    Attributes:
        base: name of the base model.
        adapters: directories of the adapters, by name. That of a run with one policy, and an adapter's
            directory, has the name that the user gave; the policies of a run with several have their own.
        versions: the version that each adapter's answers carry: from its checkpoint's state, else the step's
            number, else 0. That of a policy which learned less often than the others is lower than the step.
        aliases: additional names: ``default`` is the first model, and ``base`` the base model.
    """

    base: str
    adapters: dict[str, Path]
    versions: dict[str, int]
    aliases: dict[str, str]

    @classmethod
    def of(cls, source: ModelSource, name: str) -> Self:
        """Return the models of a source that the command line calls ``name``."""
        adapters: dict[str, Path] = {}
        versions: dict[str, int] = {}
        if source.adapter is not None:
            alone = (source.adapter / ADAPTER_CONFIG).is_file()
            policies = sorted(one.parent for one in source.adapter.glob(f"*/{ADAPTER_CONFIG}"))
            adapters = {last_part(name): source.adapter} if alone else {one.name: one for one in policies}
            recorded, step = _versions_in(source.adapter)
            versions = {one: recorded.get(TRAINED if alone else one, step) for one in adapters}
        base = last_part(source.model.name)
        base = BASE if base in adapters else base
        return cls(base, adapters, versions, {TRAINED: next(iter(adapters), base), BASE: base})


class _State(msgspec.Struct):
    """The part of a checkpoint's state that is read: the versions of its policies."""

    versions: dict[str, int]


def _versions_in(checkpoint: Path) -> tuple[dict[str, int], int]:
    """Return the versions by policy that a checkpoint records, and its step; nothing and 0 elsewhere."""
    step = checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    number = int(step) if step.isdecimal() else 0
    try:
        return msgspec.json.decode((checkpoint / STATE_FILE).read_bytes(), type=_State).versions, number
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}, number
