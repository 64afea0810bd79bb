"""Adapters and learners on disk: safetensors and JSON, without pickle, in a directory that appears complete
or not.

If a run has only the policy ``default``, the checkpoint's files are at the top level. Otherwise each policy
has a folder, and ``state.json`` is at the top level. ``delivery.json`` is the learner's description of an
adapter, with which an engine checks what it serves.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

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
    BASE,
    CRITIC_FILE,
    LEARNER_FILE,
    STATE_FILE,
    TRAINED,
)
from sparring.core.files import put_in_place, scratch_for, sha256_of
from sparring.core.manifest import CANARY_TEXT, MAX_CANARY_TOKENS, Expectation, check_files, damaged, seal
from sparring.learn.adapter_weights import read_weights
from sparring.learn.critic import Critic
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import PolicyModel
from sparring.learn.saved_states import read_json
from sparring.learn.trie import build_plan

_BASE_CANARIES: WeakKeyDictionary[PolicyModel, float] = WeakKeyDictionary()


def canary_tokens(policy: PolicyModel) -> list[int]:
    """Return the token ids of the canary."""
    ids: list[int] = policy.tokenizer(CANARY_TEXT, add_special_tokens=False).input_ids
    return ids[:MAX_CANARY_TOKENS]


def write_delivery(directory: Path, policy: PolicyModel, adapter: str, version: int) -> None:
    """Write ``delivery.json`` beside the files of an adapter that was saved to ``directory``."""
    sha256 = sha256_of(directory / ADAPTER_FILE)
    Expectation(version, sha256, mean_canary(policy, adapter), base_canary(policy)).write(directory)


def base_canary(policy: PolicyModel) -> float:
    """Return the canary of the base model, which does not change, so it is computed once."""
    if policy not in _BASE_CANARIES:
        _BASE_CANARIES[policy] = mean_canary(policy, BASE)
    return _BASE_CANARIES[policy]


def mean_canary(policy: PolicyModel, adapter: str) -> float:
    """Return the mean log-probability of the canary's tokens without the first with an adapter."""
    ids = canary_tokens(policy)
    plan = build_plan([ids[:1]], [ids[1:]])
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan)
    return float(logprobs_C.mean())


CRITIC = "critic."
WEIGHTS = "weights."


def training_tensors(
    policy: PolicyModel, adapter: str, optimizer: torch.optim.Optimizer, critic: Critic | None = None
) -> dict[str, Tensor]:
    """Return trained weights and AdamW's moments and step counts, under the same names for any policy."""
    tensors = {WEIGHTS + key: value for key, value in policy.adapter_state(adapter).items()}
    if critic is not None:
        tensors |= {CRITIC + key: value for key, value in critic.state().items()}
    for index, parameter in enumerate(_parameters(policy, adapter, critic)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value).detach().clone().cpu()
    return tensors


def load_training_tensors(
    policy: PolicyModel,
    adapter: str,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    critic: Critic | None = None,
) -> None:
    """Restore the state of :func:`training_tensors`; tensors without a critic leave it as it is.

    Raises InputError if the weights belong to another adapter.
    """
    policy.load_adapter_state(part_of(tensors, WEIGHTS), adapter)
    head = part_of(tensors, CRITIC)
    if critic is not None and head:
        critic.load_state(head)
    for index, parameter in enumerate(_parameters(policy, adapter, critic)):
        moments = part_of(tensors, f"optimizer.{index}.")
        optimizer.state[parameter] = {
            name: value if name == "step" else value.to(policy.device) for name, value in moments.items()
        }


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _parameters(policy: PolicyModel, adapter: str, critic: Critic | None) -> list[Parameter]:
    return [*policy.adapter_parameters(adapter), *(critic.parameters() if critic is not None else [])]


@dataclass(frozen=True)
class SavedLearner:
    """A policy's part of a checkpoint: ``learner.result`` and ``learner.tensors()``."""

    policy: str
    result: str
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: adapters and learners' tensors by policy, and the state."""

    adapters: dict[str, dict[str, Tensor]]
    learners: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_adapter(
    directory: Path,
    policy: PolicyModel,
    base_name: str,
    name: str = TRAINED,
    *,
    version: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write an adapter in PEFT's format, replacing an existing one; with a version also ``delivery.json``."""
    scratch = scratch_for(directory)
    write_adapter(scratch, policy, base_name, name, dtype)
    if version is not None:
        write_delivery(scratch, policy, name, version)
    seal(scratch, policy.base)
    put_in_place(scratch, directory)


def save_checkpoint(
    directory: Path,
    policy: PolicyModel,
    base_name: str,
    learners: Sequence[SavedLearner],
    state: dict[str, Any],
) -> None:
    """Write a complete checkpoint to ``directory``, replacing an existing one; ``state`` is JSON-able."""
    scratch = scratch_for(directory)
    results = {learner.policy: learner.result for learner in learners}
    folders = write_adapters(scratch, policy, base_name, results)
    for learner in learners:
        write_tensors(folders[learner.policy] / LEARNER_FILE, learner.tensors)
        critic = part_of(learner.tensors, CRITIC)
        if critic:
            write_tensors(folders[learner.policy] / CRITIC_FILE, critic)
    (scratch / STATE_FILE).write_text(json.dumps(state))
    seal(scratch, policy.base)
    put_in_place(scratch, directory)


def write_adapters(
    directory: Path, policy: PolicyModel, base_name: str, results: Mapping[str, str]
) -> dict[str, Path]:
    """Write adapters, by policy, without syncing; return the directory of each policy."""
    alone = list(results) == [TRAINED]
    folders = {name: directory if alone else directory / name for name in results}
    for name, folder in folders.items():
        folder.mkdir(exist_ok=True)
        write_adapter(folder, policy, base_name, results[name])
        seal(folder, policy.base)
    return folders


def write_adapter(
    directory: Path, policy: PolicyModel, base_name: str, name: str, dtype: torch.dtype = torch.float32
) -> None:
    """Write an adapter's files into an existing directory without syncing them.

    Raises InputError if PEFT gave it settings with which it could not be read again.
    """
    config = policy.adapter_config(name) | {"base_model_name_or_path": base_name, "inference_mode": True}
    check_adapter_config(config, str(directory / ADAPTER_CONFIG))
    state = {key: value.to(dtype) for key, value in policy.adapter_state(name).items()}
    write_tensors(directory / ADAPTER_FILE, state)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1))


def load_adapter(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the configuration of a LoRA adapter.

    Raises DamagedState if files are missing or damaged, InputError if it is more than a LoRA adapter.
    """
    config = read_adapter_config(directory)
    return read_weights(directory), config


def check_lora_shape(directory: Path, config: dict[str, Any], own: PolicyModel) -> None:
    """Raise InputError if a configuration differs from that of the model's own adapters.

    Weights do not show all of it: an adapter with another alpha would answer wrongly.
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
    """Return the contents of a checkpoint; raise DamagedState if files are missing or damaged."""
    check_files(directory)
    folders = {path.parent.name: path.parent for path in sorted(directory.glob("*/*.safetensors"))}
    folders = folders or {TRAINED: directory}
    return Checkpoint(
        adapters={name: load_adapter(folder)[0] for name, folder in folders.items()},
        learners={name: read_tensors(folder / LEARNER_FILE) for name, folder in folders.items()},
        state=read_json(directory / STATE_FILE),
    )


def check_policies(directory: Path, checkpoint: Checkpoint, policies: Collection[str]) -> None:
    """Check that a checkpoint with ``versions`` by policy is complete and has these policies.

    Raises DamagedState if all files of a policy are missing, InputError if it has other policies.
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, without syncing it."""
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise DamagedState if it is missing or damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path) from error
    return tensors
