"""The linear layers of a model that the LoRA targets name, and those that they leave out."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparring.core import InputError


def linear_kinds(base: Any) -> dict[str, str]:
    """Return the names of all weight matrices, each with its path within a decoder layer.

    Embeddings and the output layer are not included. Stacked experts in one parameter count as one matrix. A
    name is that of a module, or that of such a parameter.
    """
    left_out = {id(base.get_output_embeddings())}
    left_out |= {id(module) for module in base.modules() if isinstance(module, torch.nn.Embedding)}
    kinds = {}
    for prefix, module in base.named_modules():
        if id(module) in left_out:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2 and not name.endswith("bias"):
                full = prefix if name == "weight" else f"{prefix}.{name}"
                kinds[full] = _within_layer(full)
    return kinds


def _within_layer(name: str) -> str:
    """``model.layers.3.mlp.up_proj`` -> ``mlp.up_proj``."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[-1] + 1 :]) if numbers else name


def check_targets(kinds: dict[str, str], targets: Sequence[str]) -> None:
    """Check that at least one target is a layer of the model.

    Raises:
        InputError: no target is a layer of the model.
    """
    if not any(_is_named(name, target) for name in kinds for target in targets):
        raise _no_such_layer(targets, kinds)


def left_out_by_lora(model: Any, adapter: str, kinds: dict[str, str], *, partly: bool) -> str | None:
    """Return a line on the layers that an adapter of a PEFT model leaves out; ``None`` if there are none.

    Raises:
        InputError: a target matches no layer. With ``partly``, it is enough that some match.
    """
    adapted = {*model.base_model.targeted_module_names, *model.base_model.targeted_parameter_names}
    config = model.peft_config[adapter]
    asked = {*config.target_modules, *(config.target_parameters or ())}
    known = adapted & kinds.keys()  # PEFT also finds the output layer, whose logits belong to no adapter here
    absent = sorted(target for target in asked if not any(_is_named(name, target) for name in known))
    if absent and not partly:
        raise _no_such_layer(absent, kinds)
    others = sorted({kind for name, kind in kinds.items() if name not in adapted})
    if not others:
        return None
    there = sorted({kinds[name] for name in adapted})
    return f"LoRA adapts {', '.join(there)}; it leaves out {', '.join(others)} (lora.target_modules)"


def name_output_layer(base: Any, targets: Iterable[str]) -> bool:
    """Return whether one of the targets names the output layer."""
    output = next(name for name, module in base.named_modules() if module is base.get_output_embeddings())
    return any(_is_named(output, target) for target in targets)


def _is_named(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _no_such_layer(targets: Sequence[str], kinds: dict[str, str]) -> InputError:
    return InputError(
        "lora.target_modules",
        f"{', '.join(targets)}: no such linear layer in this model",
        f"Choose from {', '.join(sorted(set(kinds.values())))}.",
    )
