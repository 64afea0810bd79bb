"""Checkpoints: adapters and learners as safetensors, everything else as JSON. Nothing is pickled.

A checkpoint is a directory that appears whole or not at all: it is written under a temporary name, synced
and renamed. A run of the one policy ``default`` has its files at the top; any other run has a folder for each
policy, and ``state.json`` at the top.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from selfplay.core import InputError
from selfplay.learning.policy import TRAINED, LoraSettings, PolicyModel

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
LEARNER_FILE = "learner.safetensors"
STATE_FILE = "state.json"


@dataclass(frozen=True)
class SavedLearner:
    """What a checkpoint keeps of one policy.

    Attributes:
        policy: the policy's name.
        result: the adapter to use: ``learner.result``.
        tensors: what the learner needs to continue: ``learner.tensors()``.
    """

    policy: str
    result: str
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint directory holds: adapters to use and learners' tensors by policy, and the state."""

    adapters: dict[str, dict[str, Tensor]]
    learners: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_adapter(directory: Path, policy: PolicyModel, base_name: str, name: str = TRAINED) -> None:
    """Write an adapter in PEFT's format; one that is there is replaced. ``base_name`` is its base model."""
    scratch = scratch_for(directory)
    write_adapter(scratch, policy, base_name, name)
    put_in_place(scratch, directory)


def save_checkpoint(
    directory: Path,
    policy: PolicyModel,
    base_name: str,
    learners: Sequence[SavedLearner],
    state: dict[str, Any],
) -> None:
    """Write a whole checkpoint to ``directory``; one that is there is replaced.

    Args:
        directory: where to.
        policy: holds the adapters.
        base_name: recorded as the adapters' base model.
        learners: one for each policy.
        state: everything else, JSON-able.
    """
    scratch = scratch_for(directory)
    alone = [learner.policy for learner in learners] == [TRAINED]
    for learner in learners:
        folder = scratch if alone else scratch / learner.policy
        folder.mkdir(exist_ok=True)
        write_adapter(folder, policy, base_name, learner.result)
        save_file({k: v.contiguous() for k, v in learner.tensors.items()}, folder / LEARNER_FILE)
    (scratch / STATE_FILE).write_text(json.dumps(state))
    put_in_place(scratch, directory)


def write_adapter(directory: Path, policy: PolicyModel, base_name: str, name: str) -> None:
    """Write an adapter's files into a directory that is there, not synced; see :func:`save_adapter`."""
    state = {key: value.contiguous() for key, value in policy.adapter_state(name).items()}
    save_file(state, directory / ADAPTER_FILE)
    config = policy.model.peft_config[name].to_dict()
    config |= {"base_model_name_or_path": base_name, "inference_mode": True}
    config["target_modules"] = sorted(config["target_modules"])
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1, default=str))


def scratch_for(directory: Path) -> Path:
    """A new directory beside ``directory``, to be filled and then :func:`put_in_place`."""
    scratch = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def put_in_place(scratch: Path, directory: Path) -> None:
    """Sync what was written to ``scratch``, give it its name, and sync the name."""
    for path in [*scratch.rglob("*"), scratch]:
        _sync(path)
    shutil.rmtree(directory, ignore_errors=True)
    scratch.rename(directory)
    _sync(directory.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_adapter(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a LoRA adapter's weights and configuration.

    Raises:
        InputError: files are missing or damaged, or it is not a plain LoRA adapter.
    """
    config_file = directory / ADAPTER_CONFIG
    if not config_file.is_file():
        raise InputError("adapter", f"{directory} has no {ADAPTER_CONFIG}", "Give a PEFT adapter directory.")
    config = _read_json(config_file)
    if config.get("peft_type") != "LORA" or not {"r", "lora_alpha", "target_modules"} <= set(config):
        raise InputError("adapter", f"{config_file} does not describe a LoRA adapter", "Give one that does.")
    unknown = [key for key in ("alpha_pattern", "rank_pattern", "use_dora", "use_rslora") if config.get(key)]
    if unknown:
        raise InputError("adapter", f"{config_file} sets {', '.join(unknown)}", "Give a plain LoRA adapter.")
    return _read_tensors(directory / ADAPTER_FILE), config


def load_checkpoint(directory: Path) -> Checkpoint:
    """Return everything a checkpoint holds.

    Raises:
        InputError: files are missing or damaged.
    """
    folders = {path.parent.name: path.parent for path in sorted(directory.glob("*/*.safetensors"))}
    folders = folders or {TRAINED: directory}
    return Checkpoint(
        adapters={name: load_adapter(folder)[0] for name, folder in folders.items()},
        learners={name: _read_tensors(folder / LEARNER_FILE) for name, folder in folders.items()},
        state=_read_json(directory / STATE_FILE),
    )


def lora_settings(config: dict[str, Any]) -> LoraSettings:
    """The adapter's shape from its PEFT configuration."""
    return LoraSettings(config["r"], config["lora_alpha"], list(config["target_modules"]))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path) from error
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> InputError:
    return InputError(
        "checkpoint",
        f"{path} is missing or damaged",
        "Take another checkpoint; a run goes on from the one before if this one is deleted.",
    )
