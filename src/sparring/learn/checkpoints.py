"""Checkpoints: adapters and learners as safetensors, everything else as JSON, without pickle.

A checkpoint is a directory that appears complete or not at all; see :mod:`sparring.core.files`. If a run has
only the policy ``default``, the checkpoint's files are at the top level. Otherwise each policy has a folder,
and ``state.json`` is at the top level.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparring.core import InputError
from sparring.core.adapter_config import (
    MORE_SHAPE,
    SET_LORA,
    check_adapter_config,
    differences,
    read_adapter_config,
    shape_of,
)
from sparring.core.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    CRITIC_FILE,
    LEARNER_FILE,
    STATE_FILE,
    TRAINED,
)
from sparring.core.files import put_in_place, scratch_for
from sparring.core.manifest import check_files, damaged, seal
from sparring.learn.adapter_weights import read_weights
from sparring.learn.optimizer_state import CRITIC, part_of
from sparring.learn.policy import PolicyModel
from sparring.learn.saved_states import read_json


@dataclass(frozen=True)
class SavedLearner:
    """The part of a checkpoint that belongs to one policy.

    Attributes:
        policy: the policy's name.
        result: name of the adapter that training produces, ``learner.result``.
        tensors: tensors from which the learner continues, ``learner.tensors()``.
    """

    policy: str
    result: str
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: adapters and learners' tensors by policy, and the state."""

    adapters: dict[str, dict[str, Tensor]]
    learners: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_adapter(directory: Path, policy: PolicyModel, base_name: str, name: str = TRAINED) -> None:
    """Write an adapter in PEFT's format, replacing an existing one. ``base_name`` is its base model."""
    scratch = scratch_for(directory)
    write_adapter(scratch, policy, base_name, name)
    seal(scratch, policy.base)
    put_in_place(scratch, directory)


def save_checkpoint(
    directory: Path,
    policy: PolicyModel,
    base_name: str,
    learners: Sequence[SavedLearner],
    state: dict[str, Any],
) -> None:
    """Write a complete checkpoint to ``directory``, replacing an existing one.

    Args:
        directory: the checkpoint's directory.
        policy: the model that holds the adapters.
        base_name: name of the adapters' base model, which is recorded with them.
        learners: one entry for each policy.
        state: all other data, JSON-able.
    """
    scratch = scratch_for(directory)
    results = {learner.policy: learner.result for learner in learners}
    folders = write_adapters(scratch, policy, base_name, results)
    for learner in learners:
        tensors = {k: v.contiguous() for k, v in learner.tensors.items()}
        save_file(tensors, folders[learner.policy] / LEARNER_FILE)
        critic = part_of(tensors, CRITIC)
        if critic:
            save_file(critic, folders[learner.policy] / CRITIC_FILE)
    (scratch / STATE_FILE).write_text(json.dumps(state))
    seal(scratch, policy.base)
    put_in_place(scratch, directory)


def write_adapters(
    directory: Path, policy: PolicyModel, base_name: str, results: Mapping[str, str]
) -> dict[str, Path]:
    """Write the adapters of a checkpoint without syncing them; return the directory of each policy.

    Args:
        directory: the checkpoint's directory, which exists.
        policy: the model that holds the adapters.
        base_name: name of the adapters' base model, which is recorded with them.
        results: by policy, the name of the adapter that training produces.
    """
    alone = list(results) == [TRAINED]
    folders = {name: directory if alone else directory / name for name in results}
    for name, folder in folders.items():
        folder.mkdir(exist_ok=True)
        write_adapter(folder, policy, base_name, results[name])
        seal(folder, policy.base)
    return folders


def write_adapter(directory: Path, policy: PolicyModel, base_name: str, name: str) -> None:
    """Write an adapter's files into an existing directory without syncing them; see :func:`save_adapter`.

    Raises:
        InputError: PEFT gave it settings with which it could not be read again.
    """
    config = policy.adapter_config(name) | {"base_model_name_or_path": base_name, "inference_mode": True}
    check_adapter_config(config, str(directory / ADAPTER_CONFIG))
    state = {key: value.contiguous() for key, value in policy.adapter_state(name).items()}
    save_file(state, directory / ADAPTER_FILE)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1))


def load_adapter(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the configuration of a LoRA adapter.

    Raises:
        DamagedState: files are missing or damaged, or weights are not finite.
        InputError: the adapter is more than a LoRA adapter.
    """
    config = read_adapter_config(directory)
    return read_weights(directory), config


def check_lora_shape(directory: Path, config: dict[str, Any], own: PolicyModel) -> None:
    """Check the settings that weights do not show: an adapter with another alpha would answer wrongly.

    Args:
        directory: the adapter's directory.
        config: its configuration, from :func:`load_adapter`.
        own: the model into whose adapters the weights are loaded.

    Raises:
        InputError: the shapes differ.
    """
    given, run = (shape_of(one) for one in (config, own.adapter_config(own.policies[0])))
    wrong = differences(given, run)
    if wrong:
        raise InputError("adapter", f"{directory}: {'; '.join(wrong)}", SET_LORA)
    for field in MORE_SHAPE:
        if given.get(field) != run.get(field):
            problem = f"{directory}: its {field} is {given.get(field)}, the run's {run.get(field)}"
            raise InputError("adapter", problem, "Give an adapter of the run's own shape.")


def load_checkpoint(directory: Path) -> Checkpoint:
    """Return the contents of a checkpoint.

    Raises:
        DamagedState: files are missing or damaged.
    """
    check_files(directory)
    folders = {path.parent.name: path.parent for path in sorted(directory.glob("*/*.safetensors"))}
    folders = folders or {TRAINED: directory}
    return Checkpoint(
        adapters={name: load_adapter(folder)[0] for name, folder in folders.items()},
        learners={name: read_tensors(folder / LEARNER_FILE) for name, folder in folders.items()},
        state=read_json(directory / STATE_FILE),
    )


def check_policies(directory: Path, checkpoint: Checkpoint, policies: Collection[str]) -> None:
    """Check that a checkpoint whose state has ``versions`` by policy is complete and has these policies.

    Raises:
        DamagedState: all files of a policy are missing.
        InputError: the checkpoint was saved with other policies.
    """
    saved = checkpoint.state["versions"]
    for policy in saved:
        if policy not in checkpoint.learners:
            raise damaged(directory / policy)
    if set(saved) != set(policies):
        raise InputError(
            "program",
            f"{directory} has the policies {', '.join(saved)}, the program has {', '.join(policies)}",
            "Give the program the policies that it had",
        )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise DamagedState if it is missing or damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path) from error
    return tensors
