"""Checkpoints: adapters and learners as safetensors, everything else as JSON, without pickle.

A checkpoint is a directory that appears complete or not at all; see :mod:`selfplay.core.files`. If a run has
only the policy ``default``, the checkpoint's files are at the top level. Otherwise each policy has a folder,
and ``state.json`` is at the top level.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from selfplay.core import InputError
from selfplay.core.adapter_config import MORE_SHAPE, check_adapter_config, read_adapter_config, shape_of
from selfplay.core.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    CRITIC_FILE,
    LEARNER_FILE,
    STATE_FILE,
    TRAINED,
)
from selfplay.core.errors import DamagedState
from selfplay.core.files import put_in_place, remove_directory, scratch_for
from selfplay.learning.adapter_weights import read_weights
from selfplay.learning.optimizer_state import CRITIC, part_of
from selfplay.learning.policy import PolicyModel

DAMAGED = ".damaged"
"""``.NAME.damaged`` is a saved state that could not be read."""
_SET_ASIDE = re.compile(rf"\.(step-)?\d+{re.escape(DAMAGED)}")


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
    modules, wrong = given["target_modules"], []
    if given["r"] != run["r"]:
        wrong.append(f"its rank is {given['r']}, the run's {run['r']}")
    if given["lora_alpha"] != run["lora_alpha"]:
        wrong.append(f"its alpha is {given['lora_alpha']:g}, the run's {run['lora_alpha']:g}")
    if not isinstance(modules, list) or set(modules) != set(run["target_modules"]):
        wrong.append(f"its target modules are {modules}, the run's {run['target_modules']}")
    if wrong:
        fix = "Set lora to the values that it was trained with."
        raise InputError("adapter", f"{directory}: {'; '.join(wrong)}", fix)
    for field in MORE_SHAPE:
        if given.get(field) != run.get(field):
            problem = f"{directory}: its {field} is {given.get(field)}, the run's {run.get(field)}"
            raise InputError("adapter", problem, "Give an adapter of the run's own shape.")


def load_checkpoint(directory: Path) -> Checkpoint:
    """Return the contents of a checkpoint.

    Raises:
        DamagedState: files are missing or damaged.
    """
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
            raise _damaged(directory / policy)
    if set(saved) != set(policies):
        raise InputError(
            "program",
            f"{directory} has the policies {', '.join(saved)}, the program has {', '.join(policies)}",
            "Give the program the policies that it had",
        )


def check_format(directory: Path, state: dict[str, Any], expected: int) -> None:
    """Check the number of the format that the state in ``directory`` was saved with.

    Raises:
        InputError: it is another one, or the state has none.
    """
    if state.get("format") != expected:
        raise InputError(
            "checkpoint",
            f"{directory} was saved by another version of selfplay",
            "Resume with the version that started the run, or start a new run.",
        )


Loaded = TypeVar("Loaded")


def newest_whole(
    numbers: Sequence[int], place: Callable[[int], Path], load: Callable[[int], Loaded]
) -> tuple[Loaded, str | None]:
    """Load the newest of several saved states that is not damaged.

    Newer states that are damaged are not tried again: the newest of them is renamed to ``.NAME.damaged``, and
    the others, with those of earlier calls, are deleted.

    Args:
        numbers: numbers of the states, oldest first; at least one.
        place: returns the directory of a number.
        load: loads the state of a number; raises DamagedState if it is damaged.

    Returns:
        The value of ``load``, and a line to show to the user if an older state than the last was loaded.

    Raises:
        DamagedState: all states are damaged; the error is that of the newest.
    """
    damaged: list[tuple[Path, DamagedState]] = []
    for number in reversed(numbers):
        try:
            loaded = load(number)
        except DamagedState as error:
            damaged.append((place(number), error))
            continue
        if not damaged:
            return loaded, None
        _set_aside([directory for directory, _ in damaged])
        return loaded, f"{damaged[0][1].problem}; continuing from {place(number).name}"
    raise damaged[0][1]


def _set_aside(damaged: list[Path]) -> None:
    """Rename the first of these directories, and delete the others and those that were renamed before."""
    newest, *others = damaged
    earlier = [path for path in newest.parent.iterdir() if _SET_ASIDE.fullmatch(path.name)]
    for directory in [*others, *earlier]:
        remove_directory(directory)
    newest.rename(newest.with_name(f".{newest.name}{DAMAGED}"))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise DamagedState if it is missing or damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path) from error
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise DamagedState if it is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path) from error
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> DamagedState:
    return DamagedState("checkpoint", f"{path} is missing or damaged", "Take another checkpoint")
