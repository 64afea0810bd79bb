"""The configuration of an adapter in PEFT's format: what is understood of it, and why the rest is not.

PEFT has more than forty settings of LoRA, and each release adds some; many change what the weights mean. So
every field is listed with the values that keep an adapter what its rank, alpha and modules say. All others
are refused unless they are off (``null``, ``false`` or empty), unknown fields too.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.errors import NOT_JSON, DamagedState, InputError
from sparring.core.files import read_regular

EVERY_LINEAR_LAYER = "all-linear"
"""The text that PEFT accepts instead of a list of modules."""
SHAPE = ("r", "lora_alpha", "target_modules")
"""The fields that every adapter has."""
MORE_SHAPE = (
    "target_parameters",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "fan_in_fan_out",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
)
"""Further fields on which an adapter's layers, ranks and scales depend. PEFT itself sets the first three in
models whose experts are stacked in one parameter."""
MOST_BYTES = 1 << 20
"""Largest size of the file."""
MOST_RANK = 1 << 20

SET_LORA = "Set lora to the values that it was trained with."
"""What to do about an adapter whose shape differs from a run's."""
# A name, or r".*\.gate_up_proj", as PEFT writes for experts. Other expressions may take forever to match.
_NAME = re.compile(r"\w[\w-]*(\.[\w-]+)*")
_PATTERN = re.compile(r"(\.\*\\\.)?\w[\w-]*(\\?\.[\w-]+)*")


def read_adapter_config(directory: Path) -> dict[str, Any]:
    """Return the configuration of a LoRA adapter that can be served as it is.

    Raises DamagedState if the file is damaged or not a LoRA adapter's, InputError for an unsupported setting.
    """
    file = directory / ADAPTER_CONFIG
    if not file.exists():
        raise DamagedState(
            "adapter", f"{directory} has no {ADAPTER_CONFIG}", "Give a PEFT adapter directory."
        )
    config = _read(file)
    check_adapter_config(config, str(file))
    return config


def check_adapter_config(config: Mapping[str, Any], file: str) -> None:
    """Check every setting of an adapter, with the errors of :func:`read_adapter_config`, which name
    ``file``."""
    if config.get("peft_type") != "LORA":
        kind = _shown(config.get("peft_type"))
        raise DamagedState("adapter", f"{file} describes no LoRA adapter but {kind}", "Give one that does.")
    for field in SHAPE:
        if field not in config:
            raise DamagedState("adapter", f"{file} does not describe a LoRA adapter", "Give one that does.")
    for field in [*FIELDS, *config]:
        value = config.get(field)
        if field not in config or FIELDS.get(field, _is_off)(value):
            continue
        problem = f"{file} sets {field:.100} to {_shown(value)}"
        if field in SHAPE and not isinstance(value, str):
            raise DamagedState("adapter", f"{problem}, which is impossible", "Save the adapter again.")
        known = "does not support" if field in FIELDS else "does not know"
        raise InputError("adapter", f"{problem}, which sparring {known}", FIXES.get(field, _MERGE))


def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields on which the meaning of the weights depends, without those that are off."""
    return {key: config[key] for key in SHAPE} | more_shape_of(config)


def differences(given: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Return in words how an adapter's rank, alpha and target modules differ from a run's."""
    modules, wrong = given["target_modules"], []
    if given["r"] != run["r"]:
        wrong.append(f"its rank is {given['r']}, the run's {run['r']}")
    if given["lora_alpha"] != run["lora_alpha"]:
        wrong.append(f"its alpha is {given['lora_alpha']:g}, the run's {run['lora_alpha']:g}")
    if not isinstance(modules, list) or set(modules) != set(run["target_modules"]):
        wrong.append(f"its target modules are {modules}, the run's {run['target_modules']}")
    return wrong


def more_shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the shape that a plain adapter does not have."""
    return {key: config[key] for key in MORE_SHAPE if not _is_off(config.get(key))}


def _read(file: Path) -> dict[str, Any]:
    damaged = DamagedState("adapter", f"{file} is missing or damaged", "Save the adapter again.")
    try:
        config = json.loads(read_regular(file, MOST_BYTES))
    except (OSError, *NOT_JSON) as error:
        raise damaged from error
    if not isinstance(config, dict):
        raise damaged
    return config


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_off(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _is_anything(value: object) -> bool:
    return True


def _is_rank(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_RANK


def _is_scale(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and _NAME.fullmatch(one) for one in value)


def _are_modules(value: object) -> bool:
    return value == EVERY_LINEAR_LAYER or _are_names(value)  # none if it has target_parameters only


def _are_names_or_off(value: object) -> bool:
    return _is_off(value) or _are_names(value)


def _is_layers_pattern(value: object) -> bool:
    return _are_names_or_off([value] if isinstance(value, str) and value else value)


def _are_layers(value: object) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return value is None or all(type(one) is int and one >= 0 for one in numbers)


def _by_pattern(of: Callable[[object], bool]) -> Callable[[object], bool]:
    def allows(value: object) -> bool:
        return _is_off(value) or (
            isinstance(value, dict) and all(_PATTERN.fullmatch(key) and of(one) for key, one in value.items())
        )

    return allows


def _one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


FIELDS: dict[str, Callable[[object], bool]] = {
    "peft_type": _one_of("LORA"),
    "task_type": _one_of(None, "CAUSAL_LM"),
    "revision": _one_of(None, "main"),
    # The shape.
    "r": _is_rank,
    "lora_alpha": _is_scale,
    "target_modules": _are_modules,
    "target_parameters": _are_names_or_off,
    "exclude_modules": _are_names_or_off,
    "layers_pattern": _is_layers_pattern,
    "layers_to_transform": _are_layers,
    "rank_pattern": _by_pattern(_is_rank),
    "alpha_pattern": _by_pattern(_is_scale),
    "use_rslora": _one_of(None, True, False),
    "fan_in_fan_out": _one_of(None, True, False),
    # What may make it more than a LoRA.
    "init_lora_weights": _one_of(None, True, False, "gaussian", "orthogonal", "eva"),
    "bias": _one_of(None, "none"),
    **dict.fromkeys(
        (
            *("lora_bias", "modules_to_save", "trainable_token_indices", "ensure_weight_tying"),
            *("layer_replication", "use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens"),
            *("arrow_config", "kasa_config", "monteclora_config", "velora_config", "megatron_config"),
        ),
        _is_off,
    ),
    # Notes on how the adapter was made, and settings of training.
    **dict.fromkeys(
        (
            *("auto_mapping", "peft_version", "base_model_name_or_path", "inference_mode", "lora_dropout"),
            *("runtime_config", "megatron_core", "qalora_group_size", "loftq_config", "eva_config"),
            *("corda_config", "lora_ga_config"),
        ),
        _is_anything,
    ),
}
"""PEFT's fields of LoRA, each with what it may be. A field that is not in this list must be off."""

_MERGE = "Merge it into its base model with PEFT, and use the merged model."
FIXES = {
    "task_type": "Give the adapter of a causal language model.",
    "revision": "Give its base model as a directory, and delete this field.",
    "target_modules": "Write a list of names in its place, or merge it into its base model with PEFT.",
    "init_lora_weights": "Save it with PEFT's path_initial_model_for_weight_conversion.",
    **dict.fromkeys(("target_parameters", "exclude_modules", "layers_pattern"), "Write a list of names."),
    "layers_to_transform": "Write a list of numbers.",
}
"""What to do about an unsupported value of a field, where merging does not help."""
