"""The configuration of an adapter in PEFT's format: what is understood of it, and why the rest is not.

PEFT has more than forty settings of LoRA, and each release adds some. Many change what the weights mean. So
this module lists, for every field, the values with which the adapter is what its rank, alpha and modules say.
It refuses all others, also fields that it does not know, unless they are off (``null``, ``false`` or empty).
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.core.adapters import ADAPTER_CONFIG
from sparring.core.errors import DamagedState, InputError
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
_MERGE = "Merge it into its base model with PEFT, and use the merged model."
_CONVERT = "Save it with PEFT's path_initial_model_for_weight_conversion."
_LIST = "Write a list of names in its place."
_LIST_OR_MERGE = "Write a list of names in its place, or merge it into its base model with PEFT."
_CAUSAL = "Give the adapter of a causal language model."
_NAME = re.compile(r"\w[\w-]*(\.[\w-]+)*")
# A name, or r".*\.gate_up_proj", as PEFT writes for experts. Other expressions may take forever to match.
_PATTERN = re.compile(r"(\.\*\\\.)?\w[\w-]*(\\?\.[\w-]+)*")


def read_adapter_config(directory: Path) -> dict[str, Any]:
    """Return the configuration of a LoRA adapter that can be served as it is.

    Raises:
        DamagedState: the file is missing or damaged, or does not describe a LoRA adapter.
        InputError: a setting is not supported.
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
    """Check every setting of an adapter; ``file`` is named in errors.

    Raises:
        DamagedState: it does not describe a LoRA adapter, or a field of its shape has an impossible value.
        InputError: a setting is not supported.
    """
    if config.get("peft_type") != "LORA":
        kind = _shown(config.get("peft_type"))
        raise DamagedState("adapter", f"{file} describes no LoRA adapter but {kind}", "Give one that does.")
    for field in SHAPE:
        if field not in config:
            raise DamagedState("adapter", f"{file} does not describe a LoRA adapter", "Give one that does.")
    for field in (*FIELDS, *config.keys() - FIELDS.keys()):
        value, rule = config.get(field), FIELDS.get(field, _UNKNOWN)
        if field not in config or rule.allows(value):
            continue
        problem = f"{file} sets {field:.100} to {_shown(value)}, {rule.reason}"
        if field in SHAPE and not isinstance(value, str):
            raise DamagedState("adapter", problem, rule.fix)
        raise InputError("adapter", problem, rule.fix)


def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields on which the meaning of the weights depends, without those that are off."""
    return {key: config[key] for key in SHAPE} | more_shape_of(config)


def differences(given: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Return in words how an adapter's rank, alpha and target modules differ from a run's.

    Args:
        given: the adapter's shape.
        run: the shape that the run's adapters have, with all fields of ``SHAPE``.
    """
    modules, wrong = given["target_modules"], []
    if given["r"] != run["r"]:
        wrong.append(f"its rank is {given['r']}, the run's {run['r']}")
    if given["lora_alpha"] != run["lora_alpha"]:
        wrong.append(f"its alpha is {given['lora_alpha']:g}, the run's {run['lora_alpha']:g}")
    if not isinstance(modules, list) or set(modules) != set(run["target_modules"]):
        wrong.append(f"its target modules are {modules}, the run's {run['target_modules']}")
    return wrong


def more_shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :func:`shape_of` that a plain adapter does not have."""
    return {key: config[key] for key in MORE_SHAPE if not _is_off(config.get(key))}


def _read(file: Path) -> dict[str, Any]:
    damaged = DamagedState("adapter", f"{file} is missing or damaged", "Save the adapter again.")
    try:
        config = json.loads(read_regular(file, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
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


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


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


@dataclass(frozen=True)
class Field:
    """What is known about one of PEFT's fields.

    Attributes:
        allows: whether a value is understood.
        reason: what another value means.
        fix: what to do about it.
    """

    allows: Callable[[object], bool] = _is_off
    reason: str = "which this version of sparring does not know"
    fix: str = _MERGE


_UNKNOWN = Field()
_NOTE = Field(_is_anything)

FIELDS: dict[str, Field] = {
    "peft_type": Field(_one_of("LORA"), "which is no LoRA", "Give a LoRA adapter."),
    "task_type": Field(_one_of(None, "CAUSAL_LM"), "which is another task", _CAUSAL),
    "revision": Field(
        _one_of(None, "main"),
        "a revision of its base model that may have other weights",
        "Give its base model as a directory, and delete this field.",
    ),
    # Notes on how the adapter was made, and settings of training.
    "auto_mapping": _NOTE,
    "peft_version": _NOTE,
    "base_model_name_or_path": _NOTE,
    "inference_mode": _NOTE,
    "lora_dropout": _NOTE,
    "runtime_config": _NOTE,
    "megatron_core": _NOTE,
    "qalora_group_size": _NOTE,
    "loftq_config": _NOTE,
    "eva_config": _NOTE,
    "corda_config": _NOTE,
    "lora_ga_config": _NOTE,
    # The shape.
    "r": Field(_is_rank, "which cannot be a rank", "Save the adapter again."),
    "lora_alpha": Field(_is_scale, "which cannot be a scale", "Save the adapter again."),
    "target_modules": Field(_are_modules, "which is no list of layers' names", _LIST_OR_MERGE),
    "target_parameters": Field(_are_names_or_off, "which is no list of parameters' names", _LIST),
    "exclude_modules": Field(_are_names_or_off, "which is no list of layers' names", _LIST),
    "layers_pattern": Field(_is_layers_pattern, "which is no list of names", _LIST),
    "layers_to_transform": Field(_are_layers, "which are no numbers of layers", "Write a list of numbers."),
    "rank_pattern": Field(_by_pattern(_is_rank), "which are not ranks by layers' names", _MERGE),
    "alpha_pattern": Field(_by_pattern(_is_scale), "which are not scales by layers' names", _MERGE),
    "use_rslora": Field(_is_flag, "which is neither true nor false", "Save the adapter again."),
    "fan_in_fan_out": Field(_is_flag, "which is neither true nor false", "Save the adapter again."),
    # What makes it more than a LoRA.
    "init_lora_weights": Field(
        _one_of(None, True, False, "gaussian", "orthogonal", "eva"),
        "which also changes the base model's weights",
        _CONVERT,
    ),
    "bias": Field(_one_of(None, "none"), "which trains biases of the base model"),
    "lora_bias": Field(reason="which adds biases"),
    "modules_to_save": Field(reason="which trains whole layers of the base model"),
    "trainable_token_indices": Field(reason="which trains the embeddings of tokens"),
    "ensure_weight_tying": Field(reason="which ties the adapters of embeddings and output layer"),
    "layer_replication": Field(reason="which repeats layers of the base model"),
    "use_dora": Field(reason="which scales the layers' weights (DoRA)"),
    "use_qalora": Field(reason="which adds up inputs in groups (QALoRA)"),
    "use_bdlora": Field(reason="which uses weights in diagonal blocks (BD-LoRA)"),
    "alora_invocation_tokens": Field(reason="which applies it only after these tokens (aLoRA)"),
    "arrow_config": Field(reason="which chooses among adapters for every token (Arrow)"),
    "kasa_config": Field(reason="which also changes the base model's weights (KaSA)"),
    "monteclora_config": Field(reason="which draws its weights at random (MonteCLoRA)"),
    "velora_config": Field(reason="which compresses the layers' inputs (VeLoRA)"),
    "megatron_config": Field(reason="which is for the layers of Megatron"),
}
"""PEFT's fields of LoRA. What is not in this list is refused unless it is off."""
