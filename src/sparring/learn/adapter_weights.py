"""The weights of an adapter in PEFT's format, and how they differ from those that a model has."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from sparring.core.errors import DamagedState
from sparring.core.manifest import check_if_sealed

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of an adapter's tensors by PEFT's names."""
PREFIX = "base_model.model."
FACTORS = (".lora_A.weight", ".lora_B.weight")
_OTHER_NAME = re.compile(r".*\.lora_[AB]\.(\w+\.)?weight")
_OTHER_FILES = ("adapter_model.bin", "adapter_model-*.safetensors")
_SINGLE_EXPERT = re.compile(r"\.experts\.\d+\.")
_TYPES = ("F64", "F32", "F16", "BF16")


def read_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an adapter's tensors, from the header of its file.

    Raises DamagedState if the file is missing or damaged, InputError if it is no LoRA adapter in PEFT's
    format.
    """
    path = _weight_file(directory)
    try:
        with safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in list(file.keys())}
            described = {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in parts.items()}
    except (OSError, SafetensorError) as error:
        raise _damaged(path) from error
    for name, (shape, dtype) in described.items():
        _check_tensor(path, name, shape, dtype)
    return {name: shape for name, (shape, _) in described.items()}


def read_weights(directory: Path) -> "dict[str, Tensor]":
    """Return an adapter's tensors, which are finite and as they were written; see :func:`read_shapes`."""
    import torch

    shapes = read_shapes(directory)
    path = _weight_file(directory)
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in shapes}
    except (OSError, SafetensorError) as error:
        raise _damaged(path) from error
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            problem = f"{path} has weights of {_shown(name)} that are not finite numbers"
            raise DamagedState("adapter", problem, "Take an earlier one.")
    check_if_sealed(directory, (ADAPTER_FILE, ADAPTER_CONFIG))
    return weights


def misfit(found: Shapes, expected: Shapes, layers: Collection[str]) -> InputError | None:
    """Return how an adapter's tensors differ from those that a model has for it; ``None`` if they do not.

    ``layers`` are the names of the model's layers.
    """
    own_base, own_config = (
        "Give the adapter's own base model.",
        "Give the configuration that it was saved with.",
    )

    def wrong(problem: str, fix: str) -> InputError:
        return InputError("adapter", f"its weights do not fit{problem}", fix)

    for name in sorted(found.keys() - expected.keys()):
        stacked = any(layer.endswith(".experts") for layer in layers)
        if layer_of(name) in layers:
            return wrong(f": its configuration leaves out {_shown(name)}", own_config)
        if stacked and _SINGLE_EXPERT.search(name):
            problem = f": {_shown(name)} is one expert, and this model keeps them in one"
            return wrong(problem, "Load it with PEFT and save it again, which joins them.")
        return wrong(f": this model has no {_shown(name)}", own_base)
    absent = sorted(expected.keys() - found.keys())
    if absent:
        return wrong(f": {len(absent)} are missing, {_shown(absent[0])} for example", own_config)
    for name, shape in found.items():
        rank = 0 if name.endswith(FACTORS[0]) else 1
        if shape != expected[name] and len(shape) == 2 and shape[1 - rank] == expected[name][1 - rank]:
            return wrong(
                f" its rank: {_shown(name)} has {shape[rank]}, not {expected[name][rank]}", "Correct r."
            )
        if shape != expected[name]:
            shapes = f"has the shape {list(shape)} there and {list(expected[name])} in this model"
            return wrong(f": {_shown(name)} {shapes}", own_base)
    return None


def _check_tensor(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> None:
    named = name.startswith(PREFIX) and name.endswith(FACTORS)
    if not named and _OTHER_NAME.fullmatch(name):
        problem = f"{path} names its weights otherwise than PEFT, such as {ascii(name)[1:-1][:100]}"
        raise InputError("adapter", problem, "Save it with PEFT's save_pretrained.")
    if not named:
        problem = f"{path} has weights that are no LoRA of a linear layer: {_shown(name)}"
        if "embed" in name:
            problem += ", as PEFT saves them when the vocabulary was changed"
        raise InputError("adapter", problem, "Merge it into its base model with PEFT, and use that.")
    if len(shape) != 2:
        raise DamagedState("adapter", f"{path} has a {_shown(name)} that is no matrix", "Save it again.")
    if dtype not in _TYPES:
        problem = f"{path} has weights of the type {dtype}"
        raise InputError("adapter", problem, "Save it as float32, bfloat16 or float16.")


def layer_of(name: str) -> str:
    """``base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`` -> ``model.layers.0.mlp.up_proj``."""
    return name.removeprefix(PREFIX).partition(".lora_")[0].replace(".base_layer", "")


def _shown(name: str) -> str:
    return ascii(layer_of(name))[1:-1][:100]


def _weight_file(directory: Path) -> Path:
    path = directory / ADAPTER_FILE
    if not path.is_file():  # a pipe could be read forever
        for other in _OTHER_FILES:
            if not path.exists() and any(directory.glob(other)):
                problem = f"{directory} has {other} and no {ADAPTER_FILE}"
                raise InputError("adapter", problem, "Save it with PEFT's save_pretrained, in one file.")
        raise _damaged(path)
    return path


def _damaged(path: Path) -> DamagedState:
    return DamagedState("adapter", f"{path} is missing or damaged", "Take another checkpoint")
