"""The models that a server has from its start, and their names."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from selfplay.commands.model_source import ModelSource
from selfplay.core.adapters import ADAPTER_CONFIG, BASE, STATE_FILE, TRAINED
from selfplay.training.run_directory import CHECKPOINT_PREFIX
from selfplay.training.run_names import split_checkpoint


@dataclass(frozen=True)
class ServedModels:
    """See the module.

    Attributes:
        base: name of the base model.
        adapters: directories of the adapters, by name.
        aliases: additional names: ``default`` is the first model, and ``base`` the base model.
    """

    base: str
    adapters: dict[str, Path]
    aliases: dict[str, str]

    @classmethod
    def of(cls, source: ModelSource, name: str) -> Self:
        """Return the models of a source that the command line calls ``name``."""
        found = adapter_directories(source, _last_part(name))
        base = _last_part(source.model.name)
        base = BASE if base in found else base
        return cls(base, found, {TRAINED: next(iter(found), base), BASE: base})


class _State(msgspec.Struct):
    """The part of a checkpoint's state that is read: the versions of its policies."""

    versions: dict[str, int]


def adapter_directories(source: ModelSource, name: str) -> dict[str, Path]:
    """Return adapters by the name that each is served under.

    The adapter of a run with one policy is served as ``name``, and so is an adapter directory; the policies
    of a run with several are served under their own names.
    """
    if source.adapter is None:
        return {}
    if (source.adapter / ADAPTER_CONFIG).is_file():
        return {name: source.adapter}
    policies = sorted(source.adapter.glob(f"*/{ADAPTER_CONFIG}"))
    return {config.parent.name: config.parent for config in policies}


def version_of(source: ModelSource, directory: Path) -> int:
    """Return the policy version of an adapter: from its checkpoint's state, else the step's number, else 0.

    The version of a policy that learned less often than the others is lower than the step.
    """
    alone = directory == source.adapter
    checkpoint, policy = (directory, TRAINED) if alone else (directory.parent, directory.name)
    versions = _versions_in(checkpoint)
    if policy in versions:
        return versions[policy]
    step = checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    return int(step) if step.isdecimal() else 0


def _versions_in(checkpoint: Path) -> dict[str, int]:
    """Return the versions by policy that a checkpoint records; none for an adapter outside a checkpoint."""
    try:
        return msgspec.json.decode((checkpoint / STATE_FILE).read_bytes(), type=_State).versions
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _last_part(name: str) -> str:
    """Return the last part of a path that exists, with its checkpoint; any other name unchanged."""
    run, checkpoint = split_checkpoint(name)
    path = Path(os.path.expanduser(run))
    short = path.resolve().name if path.exists() else run
    return short if run == name else f"{short}@{checkpoint}"
